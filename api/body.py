"""Reads a spec from a request's body, as JSON or YAML, within bounds."""

import asyncio
import json
from typing import Any

from fastapi import Request

from api.problems import ProblemError
from service import FieldError, JobSpec, SpecInvalid, load_yaml, parse_spec

MAX_BODY_BYTES = 256_000
JSON_TYPES = ("application/json", "")
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")


async def read_job_spec(request: Request) -> JobSpec:
    """The spec in the body. Raises ProblemError or SpecInvalid."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in JSON_TYPES + YAML_TYPES:
        raise ProblemError(415, f"send the spec as application/json or application/yaml, not as {media_type}")
    body = await _bounded(request)
    load = _load_json if media_type in JSON_TYPES else load_yaml
    return await asyncio.to_thread(lambda: parse_spec(load(body)))  # YAML of this size takes seconds


async def _bounded(request: Request) -> bytes:
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > MAX_BODY_BYTES:
            raise ProblemError(413, f"a spec has at most {MAX_BODY_BYTES} bytes")
    return bytes(chunks)


def _load_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        message = f"not valid JSON in line {error.lineno}, column {error.colno}: {error.msg}"
    except UnicodeDecodeError:
        message = "not valid JSON: not in UTF-8"
    except (RecursionError, ValueError) as error:  # ValueError: an integer of thousands of digits
        message = f"not readable as JSON: {error}"
    raise SpecInvalid([FieldError(pointer="", message=message)])
