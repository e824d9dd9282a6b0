"""Routes that take nothing they do not know: what is misspelt in an address or a body is refused, and never ignored."""

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from api.http.problems import ProblemError
from api.http.several import may_repeat
from service import unknown

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Exact(APIRoute):
    """A route that refuses parameters that it has not, and what stands twice in its address or its body."""

    def get_route_handler(self) -> Handler:
        """FastAPI's own, behind that."""
        answer = super().get_route_handler()

        async def exact(request: Request) -> Response:
            self.refuse_misspelt(request)
            return await answer(_ExactRequest(request.scope, request.receive))

        return exact

    @cached_property
    def several(self) -> dict[str, bool]:
        """Its query parameters, and which may stand several times."""
        told = (self.openapi_extra or {}).get("parameters", [])
        found = {field.alias: may_repeat(field.field_info.annotation) for field in self.dependant.query_params}
        return found | {one["name"]: False for one in told if one["in"] == "query"}

    def refuse_misspelt(self, request: Request) -> None:
        """Raise ProblemError at a query parameter that this route has not, or that stands twice where it takes one."""
        if not request.scope["query_string"]:
            return
        several, seen = self.several, set[str]()
        for name, _ in request.query_params.multi_items():
            if name not in several:
                said = unknown(name[:100], several) if several else f"there is no {name[:100]!r}; this address has none"
                remedy = "write the parameter as it is named, or leave it out"
                raise ProblemError(422, f"query parameter: {said}", f"/query/{escaped(name[:100])}", remedy=remedy)
            if name in seen and not several[name]:
                remedy = "give it once; the others would be ignored"
                raise ProblemError(422, f"query parameter: {name!r} stands twice", f"/query/{name}", remedy=remedy)
            seen.add(name)


class Direct(Exact):
    """A route whose endpoint reads the request by itself: FastAPI describes it, and looks for no parameters."""

    def get_route_handler(self) -> Handler:
        """The endpoint."""

        async def direct(request: Request) -> Response:
            self.refuse_misspelt(request)
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
