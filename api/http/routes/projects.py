"""/v1/projects: what jobs of a project may have together, and who submits into it."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from api.http.audit import told
from api.http.auth import check_leads
from api.http.exact import Exact
from api.http.problems import answers
from api.http.routes.submission import tell_where
from service import PROJECT_NAME, NewProject, ProjectBoard, ProjectChanges, ProjectView

Name = Annotated[str, Path(pattern=PROJECT_NAME)]


class ProjectList(BaseModel):
    """All projects, the default one first."""

    projects: list[ProjectView]


def router(board: ProjectBoard) -> APIRouter:
    """The routes over one service's projects."""
    routes = APIRouter(prefix="/projects", tags=["projects"], route_class=Exact)

    @routes.post("", status_code=201, responses=answers(409, 422, 507))
    async def create(request: Request, response: Response, wanted: NewProject) -> ProjectView:
        """Create a project. From now on its members submit into it with `project` in a job's spec."""
        told(request, **wanted.told)
        made = await board.create(wanted)
        tell_where(response, f"/v1/projects/{made.name}", is_new=True)
        return made

    @routes.get("")
    async def list_projects() -> ProjectList:
        """All projects: share, members, quota, and what they use of it now."""
        return ProjectList(projects=await board.all())

    @routes.get("/{name}", responses=answers(404))
    async def show(name: Name) -> ProjectView:
        """One project."""
        return await board.get(name)

    @routes.patch("/{name}", responses=answers(404, 422, 507))
    async def edit(request: Request, name: Name, changes: ProjectChanges) -> ProjectView:
        """Change a project's share, members, admins or quota. Only what is sent changes; null takes a limit away. Its
        own admins change members and admins. Jobs that run go on, also beyond a quota that is smaller now; those that
        wait are looked at again."""
        told(request, **changes.told)
        check_leads(request, board.projects, name, changes.model_fields_set)
        return await board.change(name, changes)

    @routes.delete("/{name}", status_code=204, responses=answers(404, 409, 507))
    async def delete(name: Name) -> None:
        """Delete a project, once its jobs and sweeps have ended. They stay, and lists find them under its name."""
        await board.delete(name)

    return routes
