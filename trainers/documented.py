"""Models whose JSON Schema tells of each field what the docstring below it says."""

import ast
import inspect
from functools import cache
from itertools import pairwise

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Documented(BaseModel):
    """As with pydantic's `use_attribute_docstrings`, which reads each class's source when the class is made: that took
    half of the time in which the spec was imported, by every process. Here it is read when a schema is asked for."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        fields = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in docstrings_of_fields(cls).items():
            if name in fields:
                fields[name].setdefault("description", text)
        return schema


@cache
def docstrings_of_fields(model: type[BaseModel]) -> dict[str, str]:
    """The docstring of each field that has one, those of its base classes too."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if one is not BaseModel and issubclass(one, BaseModel):
            found |= _written_in(one)
    return found


def _written_in(one: type) -> dict[str, str]:
    try:
        source = inspect.getsource(one)
    except (OSError, TypeError):  # a class without a file
        return {}
    if source[0].isspace():  # a class within another, or within a function
        source = f"if True:\n{source}"
    tree = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
