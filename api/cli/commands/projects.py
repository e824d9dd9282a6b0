"""The commands about projects: their quotas, shares and members."""

import json
from typing import Annotated, Any

import typer

from api.cli.context import CliContext
from api.cli.options import Output, OutputOption, ServerOption

Name = Annotated[str, typer.Argument(metavar="NAME", help="The project's name.", show_default=False)]
JobsOption = Annotated[int | None, typer.Option(min=1, help="Jobs that may run at once.", show_default=False)]
CpusOption = Annotated[float | None, typer.Option(min=0, help="CPUs that they may hold.", show_default=False)]
GpusOption = Annotated[float | None, typer.Option(min=0, help="GPUs that they may hold.", show_default=False)]
DiskOption = Annotated[
    float | None, typer.Option(min=0, help="GB that the runs of all its jobs may hold.", show_default=False)
]
ShareOption = Annotated[
    float | None, typer.Option(min=0.001, max=1000, help="Its weight beside other projects.", show_default=False)
]


def add_projects(app: typer.Typer, context: CliContext) -> None:
    """Add `projects` with `list`, `show`, `create`, `edit` and `delete`."""
    group = typer.Typer(help="Projects: what a team's jobs may hold together, and who submits into them.")
    app.add_typer(group, name="projects", no_args_is_help=True)
    _add_views(group, context)
    _add_create(group, context)
    _add_edit(group, context)
    _add_delete(group, context)


def _add_views(group: typer.Typer, context: CliContext) -> None:
    @group.command("list")
    def list_projects(server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """List projects, with what they may have and what they use."""
        from api.cli.actions.team.projects import print_projects
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_projects([*client.projects()], output is Output.json)

    @group.command()
    def show(name: Name, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Show one project."""
        from api.cli.actions.team.projects import print_project
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_project(client.project(name), output is Output.json)


def _add_create(group: typer.Typer, context: CliContext) -> None:
    @group.command()
    def create(
        name: Name,
        *,
        member: Annotated[
            list[str] | None, typer.Option(help="Who submits into it; may be repeated. [everybody]")
        ] = None,
        admin: Annotated[
            list[str] | None, typer.Option(help="Who chooses its members and looks after its jobs; may be repeated.")
        ] = None,
        share: ShareOption = None,
        jobs: JobsOption = None,
        cpus: CpusOption = None,
        gpus: GpusOption = None,
        disk_gb: DiskOption = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Create a project. For admins."""
        from api.cli.actions.team.projects import print_project
        from api.cli.connection import connected

        fields = _given(share, {"jobs": jobs, "cpus": cpus, "gpus": gpus, "disk_gb": disk_gb})
        if member:
            fields["members"] = member
        if admin:
            fields["admins"] = admin
        with connected(context, server) as client:
            print_project(client.create_project(name, **fields), output is Output.json)


def _add_edit(group: typer.Typer, context: CliContext) -> None:
    @group.command()
    def edit(
        name: Name,
        *,
        add_member: Annotated[list[str] | None, typer.Option(help="One more; may be repeated.")] = None,
        remove_member: Annotated[list[str] | None, typer.Option(help="One less; may be repeated.")] = None,
        add_admin: Annotated[list[str] | None, typer.Option(help="One more; may be repeated.")] = None,
        remove_admin: Annotated[list[str] | None, typer.Option(help="One less; may be repeated.")] = None,
        share: ShareOption = None,
        jobs: JobsOption = None,
        cpus: CpusOption = None,
        gpus: GpusOption = None,
        disk_gb: DiskOption = None,
        no_limit: Annotated[
            list[str] | None, typer.Option(metavar="LIMIT", help="Take away `jobs`, `cpus`, `gpus` or `disk-gb`.")
        ] = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Change a project: its members (`*`: everybody) and admins, for its admins; share and limits, for admins."""
        from api.cli.actions.team.projects import People, edit_people, print_project, without_limits
        from api.cli.connection import connected

        fields = _given(share, {"jobs": jobs, "cpus": cpus, "gpus": gpus, "disk_gb": disk_gb})
        fields = without_limits(fields, no_limit or [])
        with connected(context, server) as client:
            members, admins = People(add_member or [], remove_member or []), People(add_admin or [], remove_admin or [])
            fields |= edit_people(client, name, members, admins)
            print_project(client.edit_project(name, **fields), output is Output.json)


def _add_delete(group: typer.Typer, context: CliContext) -> None:
    @group.command()
    def delete(name: Name, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Delete a project, once its jobs and sweeps have ended; those stay. For admins."""
        from api.cli.connection import connected

        with connected(context, server) as client:
            client.delete_project(name)
        told = f"Project {name} is deleted. `millrace list --project {name}` lists the jobs that it had."
        typer.echo(json.dumps({"name": name, "deleted": True}) if output is Output.json else told)


def _given(share: float | None, limits: dict[str, float | None]) -> dict[str, Any]:
    """The fields that were named."""
    quota = {limit: value for limit, value in limits.items() if value is not None}
    if (disk_gb := quota.pop("disk_gb", None)) is not None:
        quota["disk_bytes"] = round(disk_gb * 1e9)
    return ({} if share is None else {"share": share}) | ({"quota": quota} if quota else {})
