"""What a client asks of the service about projects, with the methods of both clients for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

import service
from api.client.call import Call, many, one

T = TypeVar("T")


def projects() -> Call[list[service.ProjectView]]:
    """GET /v1/projects."""
    return Call("GET", "/v1/projects", many(service.ProjectView, "projects"))


def project(name: str) -> Call[service.ProjectView]:
    """GET /v1/projects/{name}."""
    return Call("GET", f"/v1/projects/{name}", one(service.ProjectView))


def create_project(name: str, fields: dict[str, Any]) -> Call[service.ProjectView]:
    """POST /v1/projects."""
    return Call("POST", "/v1/projects", one(service.ProjectView), {"json": {"name": name, **fields}})


def edit_project(name: str, changes: dict[str, Any]) -> Call[service.ProjectView]:
    """PATCH /v1/projects/{name}."""
    return Call("PATCH", f"/v1/projects/{name}", one(service.ProjectView), {"json": changes}, True)


def delete_project(name: str) -> Call[None]:
    """DELETE /v1/projects/{name}."""
    return Call("DELETE", f"/v1/projects/{name}", lambda _: None)


class ProjectMethods(ABC):
    """Of the client that waits."""

    @abstractmethod
    def _do(self, call: Call[T]) -> T:
        """Ask the service."""

    def projects(self) -> Iterator[service.ProjectView]:
        """All projects, with what they use, the default one first."""
        yield from self._do(projects())

    def project(self, name: str) -> service.ProjectView:
        """One of them."""
        return self._do(project(name))

    def create_project(self, name: str, **fields: Any) -> service.ProjectView:
        """A new project; with its `share`, `members`, `admins` and `quota` of `jobs`, `cpus`, `gpus`, `disk_bytes`."""
        return self._do(create_project(name, fields))

    def edit_project(self, name: str, **changes: Any) -> service.ProjectView:
        """Change a project's `share`, `members`, `admins`, or limits in its `quota` (None takes one away)."""
        return self._do(edit_project(name, changes))

    def delete_project(self, name: str) -> None:
        """Delete a project, once its jobs and sweeps have ended; they stay."""
        self._do(delete_project(name))


class AsyncProjectMethods(ABC):
    """Of the client with an event loop."""

    @abstractmethod
    async def _do(self, call: Call[T]) -> T:
        """Ask the service."""

    async def projects(self) -> AsyncIterator[service.ProjectView]:
        """All projects, with what they use, the default one first."""
        for found in await self._do(projects()):
            yield found

    async def project(self, name: str) -> service.ProjectView:
        """One of them."""
        return await self._do(project(name))

    async def create_project(self, name: str, **fields: Any) -> service.ProjectView:
        """A new project; with its `share`, `members`, `admins` and `quota` of `jobs`, `cpus`, `gpus`, `disk_bytes`."""
        return await self._do(create_project(name, fields))

    async def edit_project(self, name: str, **changes: Any) -> service.ProjectView:
        """Change a project's `share`, `members`, `admins`, or limits in its `quota` (None takes one away)."""
        return await self._do(edit_project(name, changes))

    async def delete_project(self, name: str) -> None:
        """Delete a project, once its jobs and sweeps have ended; they stay."""
        await self._do(delete_project(name))
