"""The projects of one service: in its database, and in memory, because every look at the queue asks for them."""

import time
from concurrent.futures import Future

from sqlalchemy import Connection, Engine, delete, insert, select, update
from sqlalchemy.orm import Session

from service.database.connection import Writer
from service.database.tables import JobRow, ProjectRow, SweepRow, SweptRow
from service.errors import ProjectExists, ProjectKept, ProjectNotFound, ProjectStays
from service.projects.project import DEFAULT, NewProject, Project, ProjectChanges, ProjectQuota
from trainers import State

NAMED = 5
"""So many of the jobs that keep a project are named."""


class Projects:
    """All projects. What is read comes from memory; what changes is durable before it counts."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self.writer = writer
        with Session(engine) as session:
            found = [Project.model_validate(row) for row in session.scalars(select(ProjectRow))]
        self.known = {project.name: project for project in found}

    def all(self) -> list[Project]:
        """By name, the default one first."""
        return sorted(self.known.values(), key=lambda project: (project.name != DEFAULT, project.name))

    def get(self, name: str) -> Project:
        """One of them. Raises ProjectNotFound."""
        if (project := self.known.get(name)) is None:
            names = ", ".join(project.name for project in self.all()[:20])
            raise ProjectNotFound(f"there is no project {name!r}; there are {names}; an admin creates others")
        return project

    def create(self, new: NewProject) -> "Future[Project]":
        """A new project. The future raises ProjectExists."""
        fields = {"share": new.share, "members": _once(new.members), "admins": _once(new.admins), "quota": new.quota}
        project = Project(name=new.name, created=time.time(), **fields)

        def work(connection: Connection) -> Project:
            if connection.scalar(select(ProjectRow.name).where(ProjectRow.name == project.name)) is not None:
                raise ProjectExists(f"there is a project {project.name!r} already; change it, or take another name")
            connection.execute(insert(ProjectRow).values(**_values(project)))
            return project

        return self.writer.submit(work, self._known)

    def change(self, name: str, changes: ProjectChanges) -> "Future[Project]":
        """Change a project. The future raises ProjectNotFound."""

        def work(connection: Connection) -> Project:
            project = changes.changed(self.get(name))  # in the one thread that writes, so that no change is lost
            people = {"members": _once(project.members), "admins": _once(project.admins)}
            project = project.model_copy(update=people)
            connection.execute(update(ProjectRow).where(ProjectRow.name == name).values(**_values(project)))
            return project

        return self.writer.submit(work, self._known)

    def delete(self, name: str) -> "Future[Project]":
        """Forget a project of which everything has ended; its jobs and sweeps keep its name. The future raises
        ProjectNotFound, ProjectKept."""

        def work(connection: Connection) -> Project:
            project = self.get(name)
            if name == DEFAULT:
                raise ProjectStays(f"the project {DEFAULT} stays: jobs that name no project belong to it")
            if found := _unfinished(connection, name):
                more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
                raise ProjectKept(
                    f"of project {name} these have not ended: {', '.join(found[:NAMED])}{more}; cancel them, or wait, "
                    "and delete the project then"
                )
            connection.execute(delete(ProjectRow).where(ProjectRow.name == name))
            return project

        return self.writer.submit(work, self._unknown)

    def quota(self, name: str) -> ProjectQuota:
        """What a project may have; no limits where nobody knows it."""
        project = self.known.get(name)
        return ProjectQuota() if project is None else project.quota

    def share(self, name: str) -> float:
        """Its weight."""
        project = self.known.get(name)
        return 1.0 if project is None else project.share

    def _known(self, project: Project) -> Project:
        self.known[project.name] = project
        return project

    def _unknown(self, project: Project) -> Project:
        del self.known[project.name]
        return project


def _unfinished(connection: Connection, project: str) -> list[str]:
    """The jobs of a project that have not ended, and its sweeps."""
    of_sweeps = select(SweptRow.job_id)
    waiting = (JobRow.project == project, JobRow.finished.is_(None), JobRow.id.not_in(of_sweeps))
    ended = [str(state) for state in State if state.is_terminal]
    sweeps = connection.execute(select(SweepRow.id, SweepRow.ledger).where(SweepRow.state.not_in(ended)))
    mine = [sweep for sweep, ledger in sweeps if ledger["spec"]["job"].get("project", DEFAULT) == project]
    return [*connection.scalars(select(JobRow.id).where(*waiting).order_by(JobRow.id)), *sorted(mine)]


def _once(members: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(members)))


def _values(project: Project) -> dict[str, object]:
    return project.model_dump(mode="json")
