"""What a client asks of the service about finished models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode

import httpx2

import service
from api.client.call import Call, many, one

Which = Literal["model", "best", "raw"]
"""The finished model of a job, its best one, and that without `ema`."""
EXPORTED: dict[str, Any] = {"timeout": 900.0}
"""Options of a request for a model, which waits until it has been written in its format."""


def model_file(job_id: str, which: str, form: str) -> str:
    """The address of a model that a job has left, in a format; it is read piece by piece."""
    return f"/v1/jobs/{job_id}/model?{urlencode({'which': which, 'format': form})}"


@dataclass(frozen=True)
class VersionsPage:
    """Some versions of registered models, and the token for those that follow."""

    versions: list[service.ModelVersion]
    next_page_token: str | None


def register(job_id: str, name: str, which: Which, notes: str) -> Call[service.ModelVersion]:
    """POST /v1/registry."""
    body = {"name": name, "job": job_id, "which": which, "notes": notes}
    return Call("POST", "/v1/registry", one(service.ModelVersion), {"json": body}, True)


def versions(name: str | None, job_id: str | None, latest: bool, page_token: str | None) -> Call[VersionsPage]:
    """GET /v1/registry."""

    def read(response: httpx2.Response) -> VersionsPage:
        return VersionsPage(many(service.ModelVersion, "versions")(response), response.json()["next_page_token"])

    asked = {"name": name, "job": job_id, "latest": latest or None, "page_token": page_token}
    return Call("GET", "/v1/registry", read, {"params": {key: told for key, told in asked.items() if told is not None}})


def version(reference: str) -> Call[service.ModelVersion]:
    """GET /v1/registry/{id}."""
    return Call("GET", _address(reference), one(service.ModelVersion))


def version_file(reference: str) -> str:
    """The address of the file of a version, which is read piece by piece."""
    return f"{_address(reference)}/model"


def remove_version(reference: str) -> Call[None]:
    """DELETE /v1/registry/{id}."""
    return Call("DELETE", _address(reference), lambda _: None)


def _address(reference: str) -> str:
    return f"/v1/registry/{quote(reference, safe='@')}"
