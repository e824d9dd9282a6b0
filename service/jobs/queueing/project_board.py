"""What projects may have, and what they use of it."""

import asyncio
from collections import Counter

from service.jobs.queueing.entrance import Entrance
from service.projects.project import NewProject, Project, ProjectChanges, ProjectUse, ProjectView


class ProjectBoard:
    """The projects of one service, to be shown and changed. Its methods run on one event loop."""

    def __init__(self, entrance: Entrance) -> None:
        self.entrance = entrance
        self.queue = entrance.queue
        self.projects = entrance.queue.projects

    async def all(self) -> list[ProjectView]:
        """By name, the default one first."""
        return await self._views(self.projects.all())

    async def get(self, name: str) -> ProjectView:
        """One of them. Raises ProjectNotFound."""
        return (await self._views([self.projects.get(name)]))[0]

    async def create(self, new: NewProject) -> ProjectView:
        """A new project. Raises ProjectExists."""
        return (await self._views([await asyncio.wrap_future(self.projects.create(new))]))[0]

    async def change(self, name: str, changes: ProjectChanges) -> ProjectView:
        """Change share, members, admins or quota. Jobs that run go on, whatever the quota is then.

        Raises:
            ProjectNotFound: There is no such project.
        """
        project = await asyncio.wrap_future(self.projects.change(name, changes))
        self.queue.look_again()
        return (await self._views([project]))[0]

    async def delete(self, name: str) -> None:
        """Forget a project of which everything has ended. Raises ProjectNotFound, ProjectKept."""
        await asyncio.wrap_future(self.projects.delete(name))

    async def _views(self, projects: list[Project]) -> list[ProjectView]:
        queue, whole = self.queue, await self.entrance.whole_cluster()
        held, waiting = queue.holdings(), Counter(claim.project for claim in queue.line)
        return [
            ProjectView(
                **project.model_dump(exclude={"quota"}),
                quota=project.quota,
                use=ProjectUse(
                    jobs=held.jobs[project.name],
                    waiting=waiting[project.name],
                    cpus=held.used[project.name].cpus,
                    gpus=held.used[project.name].gpus,
                    disk_bytes=queue.disk_bytes.get(project.name, 0),
                    of_cluster=held.dominant_share(project.name, whole),
                ),
            )
            for project in projects
        ]
