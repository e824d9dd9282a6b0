"""Query parameters that may stand in an address several times, as `?state=FAILED&state=CANCELLED`."""

from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

T = TypeVar("T")


class _OneIsEnough:
    """Says in the schema that one value needs no list around it: in an address both look the same."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        several = handler(core)
        return {"anyOf": [several, several["items"]]}


Several = Annotated[list[T], _OneIsEnough()]
"""Values of a parameter, in the order in which they stand."""


def may_repeat(annotation: Any) -> bool:
    """Whether a parameter of this type may stand several times."""
    return get_origin(annotation) is list or any(map(may_repeat, get_args(annotation)))
