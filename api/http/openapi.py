"""Completes what FastAPI knows of the API: who may call what, every problem, and which answer leads where."""

import re
from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute

from api.http.auth import Access, demanded
from api.http.cookies import Cookies
from api.http.problems import answers

PARAMETER = re.compile(r"\{(\w+)\}")
SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "Made by `millrace token create`. On a loopback address only needed where the server says so.",
    }
}

SESSION = "What a browser has after `/v1/sign-in/begin`. Changes with it come from the page of this service alone."


def name_of(route: APIRoute) -> str:
    """The operation's id: where it is and what it is called, such as `jobs-submit`."""
    return "-".join([*map(str, route.tags), route.name])


def completed(schema: dict[str, Any], access: Access) -> dict[str, Any]:
    """The same schema with security, problems and links."""
    schemes: dict[str, Any] = dict(SCHEMES)
    if access.sign_in is not None:
        name = Cookies(access.sign_in.config).session
        schemes["session"] = {"type": "apiKey", "in": "cookie", "name": name, "description": SESSION}
    schema["components"]["securitySchemes"] = schemes
    for path, method, operation in list(_operations(schema)):
        _add_problems(path, operation)
        if (role := demanded(method.upper(), path)) is not None:
            ways: list[dict[str, list[str]]] = [{name: []} for name in schemes]
            operation["security"] = ways if access.is_required else [{}, *ways]
            operation["responses"].update({str(status): part for status, part in answers(401, 403).items()})
            operation["x-role"] = str(role)
    _add_links(schema)
    _let_names_be_left_out(schema["components"]["schemas"])
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
    return schema


def _operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _add_problems(path: str, operation: dict[str, Any]) -> None:
    """What FastAPI would answer with its own error is a problem here; what has a body can have too much of it, and
    whatever is under /v1 refuses parameters that it has not."""
    has_body = "requestBody" in operation
    statuses = {422} if "422" in operation["responses"] or has_body or path.startswith("/v1/") else set[int]()
    statuses |= {400, 408, 413} if has_body else set()
    operation["responses"].update({str(status): part for status, part in answers(*statuses).items()})


def _add_links(schema: dict[str, Any]) -> None:
    """From what makes a thing to everything that can be done with it: its id is a parameter there."""
    for path, method, operation in list(_operations(schema)):
        collection = "/".join(path.split("/")[:3])
        is_maker = path == collection or path.endswith("/fork")
        for status in ("201", "202") if method == "post" and is_maker else ():
            found = operation["responses"].get(status)
            if found is not None and (links := _links(schema, collection)):
                found.setdefault("links", {}).update(links)


def _let_names_be_left_out(part: Any) -> None:
    """A section without a name fits several forms, which `oneOf` forbids; it is taken for the default one."""
    if isinstance(part, dict):
        if "discriminator" in part and "oneOf" in part:
            part["anyOf"] = part.pop("oneOf")
        for inner in part.values():
            _let_names_be_left_out(inner)
    elif isinstance(part, list):
        for inner in part:
            _let_names_be_left_out(inner)


def _links(schema: dict[str, Any], collection: str) -> dict[str, Any]:
    links = {}
    for path, _, operation in _operations(schema):
        parameters = PARAMETER.findall(path)
        if path.startswith(f"{collection}/{{") and len(parameters) == 1:
            key = "name" if parameters[0] == "name" else "id"
            links[operation["operationId"]] = {
                "operationId": operation["operationId"],
                "parameters": {f"path.{parameters[0]}": f"$response.body#/{key}"},
                "description": operation.get("summary", ""),
            }
    return links
