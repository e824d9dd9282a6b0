"""One request and its answer, as all calls of the clients are made of; and what the service, or nobody, answers."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

import service
from api.problem import Problem

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class Refused(Exception):
    """The service says no, and what to change."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class Unreachable(Exception):
    """No service answers at the address."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[httpx2.Response], T]
    options: dict[str, Any] = field(default_factory=dict)
    is_repeatable: bool = False
    """Whether it may be sent again when the connection broke in the middle: its key makes it one."""

    def answered(self, response: httpx2.Response) -> T:
        """What the answer says. Raises Refused."""
        if response.is_error:
            raise refusal(response)
        return self.read(response)


def certificates_for(server: str) -> ssl.SSLContext:
    """What a service is checked with: the well-known certificates. For http, none, as they take a while to read."""
    return service.certificates() if server.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def refusal(response: httpx2.Response) -> Refused:
    """The answer as an error."""
    try:
        return Refused(Problem.model_validate_json(response.content))
    except ValidationError:  # something else listens there
        status = response.status_code
        return Refused(Problem(title=response.reason_phrase, status=status, detail=f"{response.url} answers {status}"))


def unreachable(server: str, error: Exception) -> Unreachable:
    """Why nobody answered, and what to do."""
    cause = str(error) or type(error).__name__
    return Unreachable(f"no service answers at {server} ({cause}); `millrace serve` starts one")


def one(model: type[M]) -> Callable[[httpx2.Response], M]:
    """Reads one object."""
    return lambda response: model.model_validate_json(response.content)


def many(model: type[M], name: str | None = None) -> Callable[[httpx2.Response], list[M]]:
    """Reads a list, or the one of that name in an object."""

    def read(response: httpx2.Response) -> list[M]:
        found = response.json()
        return [model.model_validate(item) for item in (found if name is None else found[name])]

    return read


def content(response: httpx2.Response) -> bytes:
    """Reads the bytes as they are."""
    return response.content


def post(path: str, body: Any, key: str | None, read: Callable[[httpx2.Response], T]) -> Call[T]:
    """A POST that is safe to repeat with its key."""
    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    return Call("POST", path, read, {"json": body, "headers": headers}, is_repeatable=True)
