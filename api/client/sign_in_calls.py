"""What a client asks of the service about who calls, with the methods of both clients for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import service
from api.client.call import Call, one

T = TypeVar("T")


@dataclass(frozen=True)
class Ways:
    """How one comes in: what people call the sign-in provider, and where a browser goes; none: by a token alone."""

    provider: str | None
    url: str | None


def who() -> Call[service.Identity]:
    """GET /v1/me."""
    return Call("GET", "/v1/me", one(service.Identity))


def sign_out() -> Call[None]:
    """DELETE /v1/me/token."""
    return Call("DELETE", "/v1/me/token", lambda _: None)


def ways() -> Call[Ways]:
    """GET /v1/sign-in."""
    return Call("GET", "/v1/sign-in", lambda response: Ways(**response.json()))


def login(code: str, verifier: str) -> Call[dict[str, Any]]:
    """POST /v1/sign-in/login."""
    body = {"code": code, "verifier": verifier}
    return Call("POST", "/v1/sign-in/login", lambda response: dict(response.json()), {"json": body})


class SignInMethods(ABC):
    """Of the client that waits."""

    @abstractmethod
    def _do(self, call: Call[T]) -> T:
        """Ask the service."""

    def who(self) -> service.Identity:
        """Who the service takes us for, and our role."""
        return self._do(who())

    def sign_out(self) -> None:
        """End the token that is shown, for good."""
        self._do(sign_out())

    def ways(self) -> Ways:
        """How one signs in."""
        return self._do(ways())

    def login(self, code: str, verifier: str) -> dict[str, Any]:
        """What a code that a browser has brought is for: a `token`, its `id`, `user`, `role`, and when it `expires`."""
        return self._do(login(code, verifier))


class AsyncSignInMethods(ABC):
    """Of the client with an event loop."""

    @abstractmethod
    async def _do(self, call: Call[T]) -> T:
        """Ask the service."""

    async def who(self) -> service.Identity:
        """Who the service takes us for, and our role."""
        return await self._do(who())

    async def sign_out(self) -> None:
        """End the token that is shown, for good."""
        await self._do(sign_out())

    async def ways(self) -> Ways:
        """How one signs in."""
        return await self._do(ways())

    async def login(self, code: str, verifier: str) -> dict[str, Any]:
        """What a code that a browser has brought is for: a `token`, its `id`, `user`, `role`, and when it `expires`."""
        return await self._do(login(code, verifier))
