"""The command line. What a command needs from outside comes in as Doors; `deploy` puts it together."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.completion import job_ids

if TYPE_CHECKING:
    from service import ClusterInfo, Resources, Runs, Tokens

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
    require_token: bool = False
    """On loopback too; elsewhere it is always so."""
    code_role: str = "admin"
    """The least role whose jobs may run code of their own."""
    webhook_allow: tuple[str, ...] = ()
    """Networks that are not public and that webhooks may lead to all the same."""
    storage: str = ""
    """The URL at which copies of runs are kept; none: nowhere."""


@dataclass(frozen=True)
class Doors:
    """What the commands work with, and where they look by default."""

    server: str
    host: str
    port: int
    state_dir: Path
    runs_dir: Path
    """Where `run` leaves what it trained; `sweep` too, in folders of its own."""
    serve: Callable[[ServeOptions], None]
    stop_cluster: Callable[[Path], None]
    runs: "Callable[[], Runs]"
    cluster: "Callable[[str | None, Resources, int | None], AbstractContextManager[ClusterInfo]]"
    """A Ray for one run: the cluster at an address, or an embedded one that holds so much, or so many CPUs."""
    tokens: "Callable[[Path], AbstractContextManager[Tokens]]"
    """The tokens of the service that keeps its state in a folder."""
    token: str = ""
    """What the service at `server` knows us by; no other service is shown it."""
    code_role: str = "admin"
    webhook_allow: tuple[str, ...] = ()
    data_root: Path = Path("data")
    database: str = ""
    """A PostgreSQL's URL; without one, SQLite in `state_dir`."""
    storage: str = ""
    """A URL for copies of runs."""
    config: Path | None = None
    """The file that settings were looked for in."""


class Output(StrEnum):
    """For whom."""

    text = "text"
    json = "json"


class FormatName(StrEnum):
    """Of a finished model."""

    safetensors = "safetensors"
    torch_export = "torch.export"
    onnx = "onnx"


class RoleName(StrEnum):
    """What a caller may do."""

    viewer = "viewer"
    user = "user"
    admin = "admin"


class DeviceName(StrEnum):
    """Where."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="A YAML or JSON file.", show_default=False)]
JobId = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The id of the job or sweep.", show_default=False, autocompletion=job_ids),
]
JobIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="Their ids. [all that have not ended]", autocompletion=job_ids),
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Set one field; may be repeated.")]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="json: one object as the last line.")]
ServerOption = Annotated[str | None, typer.Option("--server", metavar="URL", help="The service.", show_default=False)]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="An existing Ray cluster.", show_default=False)
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only check the spec, and print it in full.")]
CpusOption = Annotated[int | None, typer.Option("--num-cpus", min=1, help="Logical CPUs of a Ray of our own.")]


def is_sweep(identity: str) -> bool:
    """Whether an id is a sweep's and not a job's."""
    return identity.startswith("sweep-")


def build(doors: Doors) -> typer.Typer:
    """The `millrace` command."""
    from api.admin_cli import add_admin
    from api.sweep_cli import add_sweeps
    from api.verb_cli import add_verbs

    app = typer.Typer(
        help="Elastic distributed training on Ray.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "obj": doors},
    )
    _add_run(app, doors)
    _add_explain(app)
    _add_export(app, doors)
    _add_profile(app)
    _add_serve(app, doors)
    _add_submit(app, doors)
    _add_watch(app, doors)
    _add_views(app, doors)
    add_sweeps(app, doors)
    add_admin(app, doors)
    add_verbs(app, doors)
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
        dry_run: DryRunOption = False,
        output: OutputOption = Output.text,
    ) -> None:
        """Train one job here and now; needs no server. Ctrl-C stops it cleanly, a second one at once."""
        from api.commands import RunRequest, read, run_here

        if dry_run:
            typer.echo(read(spec_file, sets or []).model_dump_json(indent=None if output is Output.json else 2))
            return
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


def _add_export(app: typer.Typer, doors: Doors) -> None:
    @app.command()
    def export(
        run: Annotated[
            str, typer.Argument(metavar="RUN", help="A run directory, or the id of a job.", show_default=False)
        ],
        *,
        form: Annotated[FormatName, typer.Option("--format", help="torch.export and onnx hold the computation too.")],
        to: Annotated[Path | None, typer.Option(help="The file. [beside the finished model]")] = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Write a finished model, of a run on this machine, in another format; load it again and compare."""
        from api.export import export_run

        raise typer.Exit(export_run(doors, server, run, (form.value, to), output is Output.json))


def _add_profile(app: typer.Typer) -> None:
    @app.command()
    def profile(
        *,
        model: Annotated[
            str | None, typer.Option(help="A model by name, or a spec's file: count its layers instead.")
        ] = None,
        sets: Sets = None,
        image: Annotated[str | None, typer.Option(metavar="CxHxW", help="The model's images.")] = None,
        classes: Annotated[int | None, typer.Option(min=1, help="The model's classes.")] = None,
        batches: Annotated[str | None, typer.Option(metavar="N,N...", help="Images at once.")] = None,
        sizes: Annotated[str | None, typer.Option(metavar="N,N...", help="n of the n x n matrix.")] = None,
        repeats: Annotated[int, typer.Option(min=1, help="Passes that are timed, for each size.")] = 10,
        device: Annotated[DeviceName, typer.Option(help="auto: the CPU and each kind of GPU.")] = DeviceName.auto,
        threads: Annotated[int | None, typer.Option(min=1, help="Of torch on the CPU.")] = None,
        plot: Annotated[Path, typer.Option(help="Where the picture goes, a PNG.")] = Path("profile.png"),
        output: OutputOption = Output.text,
    ) -> None:
        """Time a convolution and a fully connected layer on this machine, or count what a model's layers cost."""
        from api.profile import ModelRequest, check_options, numbers, print_model, print_timings
        from service import TimingPlan

        of_models = {"--set": sets, "--image": image, "--classes": classes}
        check_options(model, of_models, {"--batches": batches, "--sizes": sizes, "--threads": threads})
        if model is not None:
            print_model(ModelRequest(model, sets or [], image, classes), output is Output.json)
            return
        whole = TimingPlan()
        plan = TimingPlan(
            batches=numbers("--batches", batches, whole.batches),
            sizes=numbers("--sizes", sizes, whole.sizes),
            repeats=repeats,
            device=device.value,
            threads=threads,
        )
        print_timings(plan, plot, output is Output.json)


def _add_serve(app: typer.Typer, doors: Doors) -> None:
    code_role_by_default = RoleName(doors.code_role)

    @app.command()
    def serve(
        *,
        host: Annotated[str, typer.Option(help="An address; all but loopback ones demand tokens.")] = doors.host,
        port: Annotated[int, typer.Option(min=0, max=65535)] = doors.port,
        state_dir: Annotated[Path, typer.Option(help="Where jobs, logs and models are kept.")] = doors.state_dir,
        address: AddressOption = None,
        num_cpus: CpusOption = None,
        require_token: Annotated[
            bool, typer.Option("--require-token", help="Demand tokens on a loopback address too, as behind a proxy.")
        ] = False,
        code_role: Annotated[
            RoleName, typer.Option(help="The least role whose jobs may run code of their own.")
        ] = code_role_by_default,
        webhook_allow: Annotated[
            list[str] | None,
            typer.Option(metavar="NETWORK", help="A private network that webhooks may lead to; may be repeated."),
        ] = None,
        storage: Annotated[
            str,
            typer.Option(metavar="URL", help="Where copies of runs are kept: file:///folder, s3://bucket/folder."),
        ] = doors.storage,
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
                allowed = tuple(webhook_allow or doors.webhook_allow)
                rules = (require_token, code_role.value, allowed, storage)
                doors.serve(ServeOptions(host, port, state_dir.absolute(), address, num_cpus, *rules))
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
        dry_run: DryRunOption = False,
        watch: Annotated[bool, typer.Option("--watch", help="Follow the job.")] = False,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Give a job to a running service."""
        from api.commands import asking, print_job, read, watch_job

        spec = read(spec_file, sets or [])
        with asking(doors, server, str(spec_file)) as client:
            if dry_run:
                typer.echo(client.check(spec).model_dump_json(indent=None if output is Output.json else 2))
                return
            job = client.submit(spec, key)
            if watch:
                raise typer.Exit(watch_job(client, job.id, output is Output.json))
            print_job(job, output is Output.json, f"Job {job.id} is {job.state}; `millrace watch {job.id}` follows it")


def _add_watch(app: typer.Typer, doors: Doors) -> None:
    @app.command()
    def watch(jobs: JobIds = None, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Follow a job or a sweep to its end, or several jobs in a table. Ctrl-C leaves them running."""
        from api.commands import asking, watch_job
        from api.sweep_commands import watch_sweep
        from api.watching import watch_jobs

        with asking(doors, server) as client:
            if jobs is None or len(jobs) != 1:
                raise typer.Exit(watch_jobs(client, jobs or [], output is Output.json))
            watching = watch_sweep if is_sweep(jobs[0]) else watch_job
            raise typer.Exit(watching(client, jobs[0], output is Output.json))

    @app.command()
    def logs(
        job: JobId,
        follow: Annotated[bool, typer.Option("-f", "--follow", help="On to its end.")] = False,
        server: ServerOption = None,
        output: Annotated[Output, typer.Option("-o", "--output", help="json: every event, one a line.")] = Output.text,
    ) -> None:
        """Print a job's log."""
        from api.commands import asking, print_logs

        with asking(doors, server) as client:
            raise typer.Exit(print_logs(client, job, follow, output is Output.json))


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

        with asking(doors, server) as client:
            print_list(client, (state or [], label or [], limit), output is Output.json)

    @app.command()
    def show(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Show one job or sweep."""
        from api.commands import asking, print_job
        from api.sweep_commands import print_sweep

        with asking(doors, server) as client:
            if is_sweep(job):
                print_sweep(client.get_sweep(job), output is Output.json)
            else:
                print_job(client.get(job), output is Output.json)

    @app.command()
    def cancel(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Stop a job or a sweep cleanly, with checkpoints."""
        from api.commands import asking, print_job
        from api.sweep_commands import tell_sweep

        with asking(doors, server) as client:
            if is_sweep(job):
                tell_sweep(client.cancel_sweep(job), output is Output.json)
                return
            view = client.cancel(job)
            print_job(view, output is Output.json, f"Job {view.id} is {view.state}: {view.message}")

    @app.command()
    def schema() -> None:
        """Print the JSON Schema of a job spec."""
        from service import job_schema

        typer.echo(json.dumps(job_schema(), indent=2))
