"""`millrace links`: measures what lies between the nodes of a cluster, and keeps it for plans."""

import sys
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from api.cli.connection import complain
from api.cli.context import BAD_INPUT, FAILED, OK, CliContext
from api.cli.display import wide_console
from service import LinkTable, MillraceError, Resources, SpecRejected, worker_counts

MOST_AT_ONCE = 16


def measure(context: CliContext, address: str | None, at_once: str, path: Path, as_json: bool) -> int:
    """Measure the links of a Ray of our own, or of an existing one, and keep them. Returns the exit status."""
    from service import measure_links

    try:
        counts = worker_counts(at_once)
    except SpecRejected as error:
        complain(str(error).replace("workers:", "--at-once:", 1))
        return BAD_INPUT
    if counts[-1] > MOST_AT_ONCE:
        complain(f"--at-once: at most {MOST_AT_ONCE} transfers, not {counts[-1]}: each has two processes")
        return BAD_INPUT
    if not path.parent.is_dir():
        complain(f"--file: there is no folder {path.parent}")
        return BAD_INPUT
    columns = (TextColumn("measuring links"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    quiet = not sys.stderr.isatty()
    try:
        with (
            context.cluster(address, Resources(cpus=1, gpus=0), None),
            Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar,
        ):
            task = bar.add_task("", total=None)
            table = measure_links(counts, on_done=lambda done, of: bar.update(task, completed=done, total=of))
        path.write_text(table.model_dump_json(indent=2) + "\n")
    except MillraceError as error:
        complain(str(error))
        return FAILED
    except OSError as error:
        complain(f"--file: {path} cannot be written: {error.strerror}")
        return FAILED
    _print(table, path, as_json)
    return OK


def _print(table: LinkTable, path: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(table.model_dump_json())
        return
    shown = Table(title="links", title_justify="left", box=None)
    for heading in ("transport", "from", "to"):
        shown.add_column(heading)
    for heading in ("at once", "latency, us", "GB/s each", "GB/s together"):
        shown.add_column(heading, justify="right")
    for one in table.links:
        each = one.bytes_per_s / 1e9
        figures = (str(one.at_once), f"{1e6 * one.latency_s:.3g}", f"{each:.3g}", f"{one.at_once * each:.3g}")
        shown.add_row(*map(Text, (one.transport, one.source, one.target, *figures)))
    wide_console().print(shown)
    if table.pairs_left_out:
        typer.echo(f"{table.pairs_left_out} more pairs of nodes were not measured: each node with the next one only.")
    typer.echo(f"For `millrace plan --links {path}`.")
