"""Every error as `application/problem+json` (RFC 9457), with a pointer a field where fields are to blame."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from service import FieldError, JobNotFound, KeyReused, NeverFits, ServiceError, SpecInvalid, StateConflict

MEDIA_TYPE = "application/problem+json"
STATUS: dict[type[ServiceError], int] = {
    SpecInvalid: 422,
    NeverFits: 422,
    KeyReused: 422,
    JobNotFound: 404,
    StateConflict: 409,
}


class Problem(BaseModel):
    """What is wrong with a request, and what to change."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    """A sentence for people."""
    errors: list[FieldError] = []
    """One for each field that is wrong. Pointers lead into the body; `/query/...` and `/header/...` lead beside it."""


class ProblemError(Exception):
    """A request that a route refuses."""

    def __init__(self, status: int, detail: str, pointer: str | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = [] if pointer is None else [FieldError(pointer=pointer, message=detail)]


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's OpenAPI: these statuses answer with a problem."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def install(app: FastAPI) -> None:
    """Answer every error of the app in this form."""
    app.add_exception_handler(ProblemError, _refused)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def _answer(
    status: int, detail: str, errors: list[FieldError] | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, errors=errors or [])
    return JSONResponse(problem.model_dump(), status, dict(headers or {}), MEDIA_TYPE)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    return _answer(error.status, error.detail, error.errors)


async def _service_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    errors = error.errors if isinstance(error, SpecInvalid) else None
    if isinstance(error, KeyReused):
        errors = [FieldError(pointer="/header/Idempotency-Key", message=str(error))]
    return _answer(STATUS.get(type(error), 500), str(error), errors)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [
        FieldError(
            pointer="".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in item["loc"]),
            message=item["msg"],
        )
        for item in error.errors()
    ]
    return _answer(422, "; ".join(f"{item.pointer}: {item.message}" for item in errors), errors)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = {
        404: f"there is nothing at {request.url.path}; /docs lists what there is",
        405: f"{request.method} is not possible at {request.url.path}",
    }.get(error.status_code, str(error.detail))
    return _answer(error.status_code, detail, headers=error.headers)


async def _unexpected(_: Request, error: Exception) -> JSONResponse:
    return _answer(500, f"the service failed: {type(error).__name__}; its log tells more")
