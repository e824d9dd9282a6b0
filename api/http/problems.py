"""Every error as `application/problem+json` (RFC 9457), with a pointer a field where fields are to blame."""

import asyncio
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from api.problem import Problem
from service import (
    CheckpointNotFound,
    CopyDamaged,
    DrawingFailed,
    ExportBroken,
    FieldError,
    FigureNotFound,
    JobNotFound,
    KeyReused,
    LimitReached,
    ModelNotFound,
    NeverFits,
    NotExportable,
    ProjectExists,
    ProjectKept,
    ProjectNotFound,
    ProjectStays,
    ProviderUnreachable,
    SeriesNotFound,
    ServiceError,
    SignInRefused,
    SpecInvalid,
    SpecUnreadable,
    StateConflict,
    StorageFull,
    StorageUnreachable,
    StudyNotFound,
    SweepNotFound,
    TokenRefused,
    TooManyInFlight,
    TooManyWaiting,
    TraceNotFound,
    VersionNotFound,
    WebhookNotFound,
    WebhookRefused,
    sentence,
)

MEDIA_TYPE = "application/problem+json"
STATUS: dict[type[ServiceError], int] = {
    SpecInvalid: 422,
    SpecUnreadable: 409,
    NeverFits: 422,
    KeyReused: 422,
    SeriesNotFound: 422,
    JobNotFound: 404,
    CheckpointNotFound: 404,
    ModelNotFound: 404,
    TraceNotFound: 404,
    SweepNotFound: 404,
    ProjectNotFound: 404,
    ProjectExists: 409,
    ProjectKept: 409,
    ProjectStays: 409,
    StateConflict: 409,
    LimitReached: 409,
    TokenRefused: 422,
    SignInRefused: 403,
    ProviderUnreachable: 503,
    WebhookNotFound: 404,
    WebhookRefused: 422,
    TooManyWaiting: 429,
    TooManyInFlight: 429,
    VersionNotFound: 404,
    NotExportable: 422,
    ExportBroken: 503,
    DrawingFailed: 503,
    FigureNotFound: 404,
    StudyNotFound: 404,
    StorageFull: 507,
    StorageUnreachable: 503,
    CopyDamaged: 502,
}
REMEDY: dict[type[ServiceError], str] = {
    SpecInvalid: "change the fields that `errors` points to; /v1/schema/job describes every field",
    SpecUnreadable: "ask whoever runs the service for the Millrace that stored it, or a later one",
    NeverFits: "ask for less, or for a larger cluster; /v1/cluster tells what there is",
    KeyReused: "send another Idempotency-Key, or the body that the key came with first",
    JobNotFound: "take an id from GET /v1/jobs",
    SweepNotFound: "take an id from GET /v1/sweeps",
    ProjectNotFound: "take a name from GET /v1/projects",
    ProjectExists: "change it with PATCH /v1/projects/{name}, or take another name",
    ProjectKept: "cancel what the message names, or wait until it has ended, and try again",
    ProjectStays: "leave it, and change its quotas and members with PATCH /v1/projects/default",
    TraceNotFound: "take a name from GET /v1/jobs/{id}/traces",
    CheckpointNotFound: "take a step and a file from GET /v1/jobs/{id}/checkpoints",
    ModelNotFound: "wait until the job has ended or is paused, or take a checkpoint from GET /v1/jobs/{id}/checkpoints",
    SeriesNotFound: "take a name that the detail lists",
    TooManyWaiting: "wait as long as Retry-After says, or cancel a job that waits",
    TooManyInFlight: "ask for less at once",
    VersionNotFound: "take an id from GET /v1/registry",
    NotExportable: "take another format, or the model as safetensors, and `millrace export` where its code is",
    ExportBroken: "try once more; if it stays, whoever runs the service finds the whole error in its log",
    DrawingFailed: "try once more; if it stays, whoever runs the service finds the whole error in its log",
    FigureNotFound: "take a name from GET /v1/sweeps/{id}/figures",
    StudyNotFound: "submit a sweep whose only axis is workers.count",
    StorageFull: "ask whoever runs the service to make room",
    StorageUnreachable: "try again later; whoever runs the service finds out with `millrace doctor`",
    CopyDamaged: "put an undamaged copy in its place, or begin the job anew",
    WebhookNotFound: "take an id from GET /v1/webhooks",
    SignInRefused: "begin anew at /v1/sign-in/begin; if it stays, whoever runs the service finds why in its log",
    ProviderUnreachable: "try again in a minute, or send a token of this service",
    StateConflict: "look at `state` of the job or sweep; the message names the states that allow it",
    LimitReached: "ask for fewer workers, or wait until other jobs have ended",
}
REMEDIES: dict[int, str] = {
    400: "send the body as the description of this address in /openapi.json says",
    401: "send `Authorization: Bearer TOKEN`; `millrace token create` makes one",
    403: "ask for a token with a role that may",
    404: "take the address from /docs, and ids from the lists",
    405: "use a method that the header Allow names",
    408: "send the whole body at once",
    413: "send less: shorten the spec, or name files instead of writing their contents out",
    415: "set Content-Type to one that the detail names",
    416: "ask for bytes that the file has, or leave Range out",
    422: "change what `errors` points to",
    429: "wait as long as Retry-After says",
}
"""What to change, where nothing more exact is known."""


class ProblemError(Exception):
    """A request that is refused."""

    def __init__(
        self,
        status: int,
        detail: str,
        pointer: str | None = None,
        *,
        errors: list[FieldError] | None = None,
        remedy: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors or ([] if pointer is None else [FieldError(pointer=pointer, message=detail)])
        self.remedy = remedy
        self.headers = headers


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


def answer(error: ProblemError) -> JSONResponse:
    """The problem as an answer."""
    return _answer(error.status, error.detail, error.errors, error.remedy, error.headers)


def _answer(
    status: int,
    detail: str,
    errors: list[FieldError] | None = None,
    remedy: str = "",
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    problem = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        remedy=remedy or REMEDIES.get(status, ""),
        errors=[*(errors or [])],
    )
    return JSONResponse(problem.model_dump(), status, dict(headers or {}), MEDIA_TYPE)


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    return answer(error)


async def _service_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    errors = error.errors if isinstance(error, SpecInvalid) else None
    if isinstance(error, KeyReused):
        errors = [FieldError(pointer="/header/Idempotency-Key", message=str(error))]
    if isinstance(error, SeriesNotFound):
        errors = [FieldError(pointer="/query/name", message=str(error))]
    headers = {"Retry-After": str(error.retry_after_s)} if isinstance(error, TooManyWaiting) else None
    return _answer(STATUS.get(type(error), 500), str(error), errors, REMEDY.get(type(error), ""), headers)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = [FieldError(pointer=_pointer(item["loc"]), message=_message(item)) for item in error.errors()]
    return _answer(422, "; ".join(item.in_words for item in errors), errors)


def _message(item: Any) -> str:
    return f"not valid JSON: {item['ctx']['error']}" if item["type"] == "json_invalid" else sentence(item)


def _pointer(location: tuple[str | int, ...]) -> str:
    """Into the body; of what stands beside it, with its kind in front."""
    parts = location[1:] if location[0] == "body" else location
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = {
        404: f"there is nothing at {request.url.path}; /docs lists what there is",
        405: f"{request.method} is not possible at {request.url.path}",
    }.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == 405:  # of the several routes of one address, the first knows its own methods only
        found = await asyncio.to_thread(_methods, request)  # the first time, the whole schema is made for it
        headers["Allow"] = ", ".join(found + ["HEAD"] * ("GET" in found)) or headers.get("Allow", "GET")
    return _answer(error.status_code, detail, headers=headers)


def _methods(request: Request) -> list[str]:
    """What can be done at the request's address."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    found = (methods for path, methods in paths.items() if _template(path).fullmatch(request.url.path))
    return sorted({method.upper() for methods in found for method in methods})


def _template(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)))


async def _unexpected(_: Request, error: Exception) -> JSONResponse:
    remedy = "try once more; if it stays, whoever runs the service finds the cause in its log"
    return _answer(500, f"the service failed: {type(error).__name__}; its log tells more", remedy=remedy)
