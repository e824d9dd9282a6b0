"""Reads a spec from a request's body, as JSON or YAML, within bounds."""

import json
import math
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request

from api.http.auth import caller
from api.http.error_lines import placed
from api.http.exact import without_doubles
from api.http.fair_process import FairProcess
from api.http.problems import ProblemError
from service import (
    MAX_VALUES,
    FieldError,
    JobSpec,
    PlanSpec,
    SpecInvalid,
    SweepSpec,
    load_yaml,
    parse_plan,
    parse_spec,
    parse_sweep,
)

T = TypeVar("T")

MAX_BODY_BYTES = 256_000
AT_ONCE_BYTES = 4096
"""What is read where it came, in milliseconds: a spec that says each of its options has 2,700 as JSON."""
DECODER = json.JSONDecoder(object_pairs_hook=without_doubles)
"""Made once: to make one takes as long as to read a spec with it."""
JSON_TYPES = ("application/json", "")
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")


async def read_job_spec(request: Request) -> JobSpec:
    """The spec in the body. Raises ProblemError or SpecInvalid."""
    return await _read(request, parse_spec)


async def read_sweep_spec(request: Request) -> SweepSpec:
    """The sweep's spec in the body. Raises ProblemError or SpecInvalid."""
    return await _read(request, parse_sweep)


async def read_plan_spec(request: Request) -> PlanSpec:
    """What a plan is asked for. Raises ProblemError or SpecInvalid."""
    return await _read(request, parse_plan)


async def read_changes(request: Request) -> dict[str, Any]:
    """Changes of a spec in the body; an empty one changes nothing. Raises ProblemError or SpecInvalid."""
    return await _read(request, _mapping, empty={})


def _mapping(data: Any) -> dict[str, Any]:
    if isinstance(data, dict):
        return data
    raise SpecInvalid([FieldError(pointer="", message="changes are a mapping of fields, as in a spec")])


async def _read(request: Request, parse: Callable[[Any], T], empty: T | None = None) -> T:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in JSON_TYPES + YAML_TYPES:
        raise ProblemError(415, f"send the spec as application/json or application/yaml, not as {media_type}")
    form = _Form(media_type in JSON_TYPES, parse, empty)
    if _length(request) <= AT_ONCE_BYTES:
        return form.read(await _bounded(request))
    reading: FairProcess = request.app.state.reading
    async with reading.turns.place(caller(request).user) as turn:  # from before the body, which takes memory, comes
        body = await _bounded(request)
        try:
            return await reading.run(turn, form.read, body)  # YAML of the greatest size takes a second
        except BrokenExecutor:
            raise ProblemError(503, "the process that reads specs was ended, twice; try again later") from None


@dataclass(frozen=True)
class _Form(Generic[T]):
    """What a body must be."""

    is_json: bool
    parse: Callable[[Any], T]
    empty: T | None
    """What no body at all stands for, if it may be left out."""

    def read(self, body: bytes) -> T:
        """What the body says. Raises SpecInvalid, with lines."""
        if not body and self.empty is not None:
            return self.empty
        try:
            return self.parse(bounded(_load_json(body) if self.is_json else load_yaml(body)))
        except SpecInvalid as error:
            errors = placed(body, error.errors)
        raise SpecInvalid(errors)


def _length(request: Request) -> int:
    """Of the body in bytes; the most that it may have, where it comes in chunks."""
    told = request.headers.get("content-length", "")
    if told.isdecimal():
        return int(told)
    return MAX_BODY_BYTES if "transfer-encoding" in request.headers else 0


def bounded(data: Any) -> Any:
    """The same data, if it is one that can be stored and written out. Raises SpecInvalid.

    An alias of YAML costs nothing to read and everything to write out, so values are counted as often as they stand
    there; one that holds itself is met again until it is too many.
    """
    ahead, count = [data], 0
    while ahead:
        value = ahead.pop()
        count += 1
        if count > MAX_VALUES:
            raise _invalid(f"a spec has at most {MAX_VALUES} values, each alias counted as what it stands for")
        if isinstance(value, dict):
            ahead += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            ahead += value
        elif isinstance(value, str) and "\0" in value:
            raise _invalid("a text with a NUL character cannot be stored; take the character out")
        elif isinstance(value, float) and not math.isfinite(value):
            raise _invalid("NaN and infinity are no numbers of JSON; write a finite one")
    return data


def _invalid(message: str) -> SpecInvalid:
    return SpecInvalid([FieldError(pointer="", message=message)])


async def _bounded(request: Request) -> bytes:
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > MAX_BODY_BYTES:
            raise ProblemError(413, f"a spec has at most {MAX_BODY_BYTES} bytes")
    return bytes(chunks)


def _load_json(body: bytes) -> Any:
    try:
        return DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))
    except json.JSONDecodeError as error:
        message = f"not valid JSON in line {error.lineno}, column {error.colno}: {error.msg}"
    except UnicodeDecodeError:
        message = "not valid JSON: not in UTF-8"
    except (RecursionError, ValueError) as error:  # ValueError: an integer of thousands of digits
        message = f"not readable as JSON: {error}"
    raise _invalid(message)
