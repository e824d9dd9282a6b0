"""The command line. What a command needs from outside comes in as Doors; `deploy` puts it together."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from service import ClusterInfo, Resources, Runs

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class ServeOptions:
    """How to serve."""

    host: str
    port: int
    state_dir: Path
    address: str | None
    """An existing Ray cluster; none: a head of our own that outlives the server."""
    num_cpus: int | None


@dataclass(frozen=True)
class Doors:
    """What the commands work with, and where they look by default."""

    server: str
    host: str
    port: int
    state_dir: Path
    runs_dir: Path
    """Where `run` leaves what it trained."""
    serve: Callable[[ServeOptions], None]
    stop_cluster: Callable[[Path], None]
    runs: "Callable[[], Runs]"
    cluster: "Callable[[str | None, Resources, int | None], AbstractContextManager[ClusterInfo]]"
    """A Ray for one run: the cluster at an address, or an embedded one that holds so much, or so many CPUs."""


class Output(StrEnum):
    """For whom."""

    text = "text"
    json = "json"


SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A YAML or JSON file.", show_default=False)]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Set one field; may be repeated.")]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="json: one object as the last line.")]
ServerOption = Annotated[str | None, typer.Option("--server", metavar="URL", help="The service.", show_default=False)]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="An existing Ray cluster.", show_default=False)
]
CpusOption = Annotated[int | None, typer.Option("--num-cpus", min=1, help="Logical CPUs of a Ray of our own.")]


def build(doors: Doors) -> typer.Typer:
    """The `millrace` command."""
    app = typer.Typer(
        help="Elastic distributed training on Ray.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    _add_run(app, doors)
    _add_explain(app)
    _add_serve(app, doors)
    _add_submit(app, doors)
    _add_watch(app, doors)
    _add_views(app, doors)
    return app


def _add_run(app: typer.Typer, doors: Doors) -> None:
    @app.command()
    def run(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        address: AddressOption = None,
        run_dir: Annotated[Path | None, typer.Option(help="Where the run leaves everything. [runs/JOB]")] = None,
        num_cpus: CpusOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Train one job here and now; needs no server. Ctrl-C stops it cleanly, a second one at once."""
        from api.commands import RunRequest, run_here

        request = RunRequest(spec_file, sets or [], address, run_dir, num_cpus, output is Output.json)
        raise typer.Exit(run_here(doors, request))


def _add_explain(app: typer.Typer) -> None:
    @app.command()
    def explain(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        examples: Annotated[
            int | None, typer.Option(min=1, help="Training examples, where the dataset's name does not tell.")
        ] = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Print the whole recipe of a job before anything runs: batch, rates, decay, steps, with their formulas."""
        from api.recipe import print_recipe

        print_recipe(spec_file, sets or [], examples, output is Output.json)


def _add_serve(app: typer.Typer, doors: Doors) -> None:
    @app.command()
    def serve(
        *,
        host: Annotated[str, typer.Option(help="A loopback address.")] = doors.host,
        port: Annotated[int, typer.Option(min=0, max=65535)] = doors.port,
        state_dir: Annotated[Path, typer.Option(help="Where jobs, logs and models are kept.")] = doors.state_dir,
        address: AddressOption = None,
        num_cpus: CpusOption = None,
        stop_cluster: Annotated[
            bool, typer.Option("--stop-cluster", help="End the Ray that an earlier call started, with its runs.")
        ] = False,
    ) -> None:
        """Take jobs by REST. Stopping the server leaves its runs going; the next one finds them again."""
        from api.server import CannotServe
        from service import MillraceError

        try:
            if stop_cluster:
                doors.stop_cluster(state_dir.absolute())
            else:
                doors.serve(ServeOptions(host, port, state_dir.absolute(), address, num_cpus))
        except CannotServe as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(BAD_INPUT) from None
        except MillraceError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(FAILED) from None


def _add_submit(app: typer.Typer, doors: Doors) -> None:
    @app.command()
    def submit(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        key: Annotated[str | None, typer.Option(help="Idempotency key: the same one makes one job.")] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the spec, and print it in full.")] = False,
        watch: Annotated[bool, typer.Option("--watch", help="Follow the job.")] = False,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Give a job to a running service."""
        from api.commands import asking, print_job, read, watch_job

        spec = read(spec_file, sets or [])
        with asking(server or doors.server, str(spec_file)) as client:
            if dry_run:
                typer.echo(client.check(spec).model_dump_json(indent=None if output is Output.json else 2))
                return
            job = client.submit(spec, key)
            if watch:
                raise typer.Exit(watch_job(client, job.id, output is Output.json))
            print_job(job, output is Output.json, f"Job {job.id} is {job.state}; `millrace watch {job.id}` follows it")


def _add_watch(app: typer.Typer, doors: Doors) -> None:
    @app.command()
    def watch(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Follow a job to its end. Ctrl-C leaves it running."""
        from api.commands import asking, watch_job

        with asking(server or doors.server) as client:
            raise typer.Exit(watch_job(client, job, output is Output.json))

    @app.command()
    def logs(
        job: JobId,
        follow: Annotated[bool, typer.Option("-f", "--follow", help="On to its end.")] = False,
        server: ServerOption = None,
    ) -> None:
        """Print a job's log."""
        from api.commands import asking, follow_logs

        with asking(server or doors.server) as client:
            if follow:
                raise typer.Exit(follow_logs(client, job))
            typer.echo(client.logs(job), nl=False)


def _add_views(app: typer.Typer, doors: Doors) -> None:
    @app.command("list")
    def list_jobs(
        state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state; may be repeated.")] = None,
        label: Annotated[list[str] | None, typer.Option(help="Only jobs with this KEY=VALUE or KEY.")] = None,
        limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """List jobs, newest first."""
        from api.commands import asking, print_list

        with asking(server or doors.server) as client:
            print_list(client, (state or [], label or [], limit), output is Output.json)

    @app.command()
    def show(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Show one job."""
        from api.commands import asking, print_job

        with asking(server or doors.server) as client:
            print_job(client.get(job), output is Output.json)

    @app.command()
    def cancel(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Stop a job cleanly, with a checkpoint."""
        from api.commands import asking, print_job

        with asking(server or doors.server) as client:
            view = client.cancel(job)
            print_job(view, output is Output.json, f"Job {view.id} is {view.state}: {view.message}")

    @app.command()
    def schema() -> None:
        """Print the JSON Schema of a job spec."""
        from service import job_schema

        typer.echo(json.dumps(job_schema(), indent=2))
