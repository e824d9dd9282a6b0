"""Routes that take nothing they do not know: what is misspelt in an address or a body is refused, and never ignored."""

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from api.http.problems import ProblemError
from service import unknown

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Exact(APIRoute):
    """A route that refuses parameters that it has not, and keys that stand in its body twice."""

    def get_route_handler(self) -> Handler:
        """FastAPI's own, behind that."""
        answer = super().get_route_handler()

        async def exact(request: Request) -> Response:
            self.refuse_unknown(request)
            return await answer(_ExactRequest(request.scope, request.receive))

        return exact

    def refuse_unknown(self, request: Request) -> None:
        """Raise ProblemError at a query parameter that this route has not."""
        if not request.scope["query_string"]:
            return
        told = (self.openapi_extra or {}).get("parameters", [])
        names = [field.alias for field in self.dependant.query_params]
        names += [one["name"] for one in told if one["in"] == "query"]
        for name in request.query_params:
            if name not in names:
                said = unknown(name[:100], names) if names else f"there is no {name[:100]!r}; this address has none"
                remedy = "write the parameter as it is named, or leave it out"
                raise ProblemError(422, f"query parameter: {said}", f"/query/{escaped(name[:100])}", remedy=remedy)


class Direct(Exact):
    """A route whose endpoint reads the request by itself: FastAPI describes it, and looks for no parameters."""

    def get_route_handler(self) -> Handler:
        """The endpoint."""

        async def direct(request: Request) -> Response:
            self.refuse_unknown(request)
            response: Response = await self.endpoint(request)
            return response

        return direct


class _ExactRequest(Request):
    async def json(self) -> Any:
        """The body, in which no key stands twice."""
        body = await self.body()
        try:
            return json.loads(body, object_pairs_hook=without_doubles)
        except json.JSONDecodeError:
            raise
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None


def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError if a key stands in it twice: the first would be lost without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name[:100]!r} stands twice in one object; leave one of them out")
    return found


def escaped(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
