"""`millrace plan`: what more workers would bring, as a table, Markdown, a picture or one JSON object."""

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer
from rich.table import Table
from rich.text import Text

from api.cli.actions.profile import timed_here
from api.cli.actions.specs import read_job
from api.cli.connection import complain, connected
from api.cli.context import BAD_INPUT, CliContext
from api.cli.display import wide_console
from service import (
    OPTION_HEADINGS,
    JobSpec,
    KeptProfile,
    MillraceError,
    Plan,
    PlanRequest,
    PlanTable,
    SpecInvalid,
    StepProfile,
    Target,
    kept_profile,
    read_cluster,
    read_links,
    read_profile,
    read_target,
    runs_in,
    with_target,
    worker_counts,
)

OPTIONS = ("workers", "nodes", "cluster", "profile", "links", "target")
"""By whose names errors begin."""


@dataclass(frozen=True)
class PlanOptions:
    """The options of the command."""

    workers: str | None
    cluster: str | None
    profile: Path | None
    links: Path | None
    nodes: str | None
    target: str | None
    noise_scale: bool
    server: str | None
    price: float | None
    plot: Path | None
    search: bool = False
    simulate: int = 0


def print_plan(context: CliContext, spec_file: Path, sets: list[str], options: PlanOptions, form: str) -> None:
    """Plan a spec and print it as `text`, `json` or `md`, or end with exit status 2."""
    spec = read_job(spec_file, sets)
    if options.noise_scale and options.target is None:
        _refuse("--noise-scale: only goes with --target, of which it tells; leave it out")
    if options.plot is not None and not options.plot.parent.is_dir():
        _refuse(f"--plot: there is no folder {options.plot.parent}")
    try:
        plan = _plan(context, spec, options)
    except SpecInvalid as error:
        _refuse(
            "; ".join(
                _as_option(f"{one.pointer[1:].replace('/', '.')}: {one.message}", spec_file) for one in error.errors
            )
        )
    except MillraceError as error:
        _refuse(_as_option(str(error), spec_file))
    if options.plot is not None:
        _draw(plan, options.plot)
    if form == "json":
        typer.echo(plan.model_dump_json())
    elif form == "md":
        typer.echo(PlanTable(plan).markdown, nl=False)
    else:
        _show(plan, options.plot)


def _plan(context: CliContext, spec: JobSpec, options: PlanOptions) -> Plan:
    target = None if options.target is None else _target(options.target, spec)
    request = PlanRequest(
        workers=None if options.workers is None else worker_counts(options.workers),
        nodes=None if options.nodes is None else worker_counts(options.nodes, "nodes"),
        cluster=None if options.cluster is None else read_cluster(options.cluster),
        links=None if options.links is None else read_links(options.links),
        price=options.price,
        search=options.search,
        simulate=options.simulate,
    )
    if options.server is not None:
        return _asked(context, spec, request, options)
    if request.cluster is not None and request.links is not None:
        _refuse("--links: a described cluster has its own links; leave --links or --cluster out")
    if request.cluster is None or options.profile is not None:
        request = request.model_copy(update={"profile": _profile(spec, options.profile)})
    plan = _planned(spec, request)
    if target is None:
        return plan
    runs = runs_in(context.runs_dir, spec, target.metric)
    return with_target(spec, plan, target, options.price, runs, options.noise_scale)


def _planned(spec: JobSpec, request: PlanRequest) -> Plan:
    from service import plan_spec, plan_work

    if isinstance(request.profile, KeptProfile):
        return plan_work(spec.train, request.profile.work, request)
    return plan_spec(spec.train, request)


def _asked(context: CliContext, spec: JobSpec, request: PlanRequest, options: PlanOptions) -> Plan:
    """The plan of a service: for its machine where nothing else is said, with what its jobs tell of the target."""
    if options.profile is not None:
        request = request.model_copy(update={"profile": read_profile(options.profile)})
    asked = request.model_dump(mode="json", exclude_none=True)
    if options.target is not None:
        asked |= {"target": options.target, "noise_scale": options.noise_scale}
    with connected(context, options.server) as client:
        return client.plan(spec, **asked)


def _target(text: str, spec: JobSpec) -> Target:
    try:
        return read_target(text, spec)
    except ValueError as error:
        _refuse(f"--target: {error}")


def _profile(spec: JobSpec, path: Path | None) -> StepProfile:
    """From the file, or timed now and kept there; without a file, from among those that are kept for the user."""
    if path is None:
        return kept_profile(spec.train) or timed_here(spec, None)
    if path.exists():
        return read_profile(path)
    if not path.parent.is_dir():
        _refuse(f"--profile: there is no folder {path.parent}")
    return timed_here(spec, path)


def _draw(plan: Plan, path: Path) -> None:
    from service import plot_plan

    try:
        plot_plan(plan, path)
    except OSError as error:
        _refuse(f"--plot: {path} cannot be written: {error.strerror}")


def _show(plan: Plan, plot: Path | None) -> None:
    text = PlanTable(plan)
    table = Table(title=f"{text.title}; ms of a step", title_justify="left", box=None)
    for heading in text.headings:
        table.add_column(heading, justify="right")
    for row in text.rows:
        table.add_row(*map(Text, row), style="bold" if row[0] == str(plan.recommended) else "")
    wide_console().print(table)
    if text.plan.options:
        wide_console().print(_options(text))
    typer.echo("")
    for sentence in text.sentences:
        typer.echo(sentence)
    for title, lines in text.timelines:
        typer.echo(f"\n{title}:\n{lines}")
    if plot is not None:
        typer.echo(f"The plot is in {plot}")


def _options(text: PlanTable) -> Table:
    table = Table(title="what else it could be", title_justify="left", box=None)
    for heading in OPTION_HEADINGS:
        table.add_column(heading, justify="right")
    for row in text.option_rows:
        table.add_row(*map(Text, row))
    return table


def _as_option(message: str, spec_file: Path) -> str:
    """An error of an option by the option's name, any other one by the file's."""
    return f"--{message}" if message.partition(":")[0] in OPTIONS else f"{spec_file}: {message}"


def _refuse(line: str) -> NoReturn:
    complain(line)
    raise typer.Exit(BAD_INPUT)
