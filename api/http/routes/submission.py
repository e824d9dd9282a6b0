"""What submitting a job and submitting a sweep have in common."""

from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, TypeAdapter, ValidationError

T = TypeVar("T")

DRY_RUN: TypeAdapter[bool] = TypeAdapter(bool)
KEY: TypeAdapter[str] = TypeAdapter(Annotated[str, Field(min_length=1, max_length=200)])
PARAMETERS: list[dict[str, Any]] = [
    {
        "name": "dry_run",
        "in": "query",
        "description": "Only check the spec.",
        "schema": {**DRY_RUN.json_schema(), "default": False},
    },
    {"name": "Idempotency-Key", "in": "header", "schema": KEY.json_schema()},
]


class Asked(NamedTuple):
    """What stands beside the spec."""

    dry_run: bool
    key: str | None


def asked(request: Request) -> Asked:
    """Raises RequestValidationError, as FastAPI would."""
    has_query, key = bool(request.scope["query_string"]), request.headers.get("idempotency-key")
    dry_run = request.query_params.get("dry_run") if has_query else None
    return Asked(
        False if dry_run is None else _read(DRY_RUN, dry_run, "query", "dry_run"),
        None if key is None else _read(KEY, key, "header", "Idempotency-Key"),
    )


def _read(adapter: TypeAdapter[T], text: str, *place: str) -> T:
    try:
        return adapter.validate_python(text)
    except ValidationError as error:
        raise RequestValidationError([{**item, "loc": place} for item in error.errors()]) from None


def spec_in_body(schema: str, example: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI of a body that holds a spec, as JSON or YAML, and of what stands beside it."""
    reference = {"$ref": f"#/components/schemas/{schema}"}
    content = {
        "application/json": {"schema": reference, "example": example},
        "application/yaml": {
            "schema": {"anyOf": [reference, {"type": "null"}]},
            "example": example,
        },  # null: nothing set
    }
    return {"requestBody": {"required": True, "content": content}, "parameters": PARAMETERS}


def tell_where(response: Response, address: str, is_new: bool) -> None:
    """Where what was taken in is, and whether it had been taken in before under the same key."""
    response.headers["Location"] = address
    if not is_new:
        response.headers["Idempotent-Replayed"] = "true"
