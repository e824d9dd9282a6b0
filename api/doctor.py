"""`millrace doctor`: looks at everything that a run or a service needs, and says how to mend what is amiss."""

import json
import sys
from collections.abc import Iterator
from itertools import chain

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli import FAILED, OK, Doors
from api.client import Refused, Unreachable
from api.commands import client_of
from service import Finding, Health, MillraceError, Resources, doctor

COLOURS = {Health.ok: "green", Health.warning: "yellow", Health.failed: "red"}


def examine(doors: Doors, server: str | None, address: str | None, is_quick: bool) -> Iterator[Finding]:
    """Everything, the quick things first."""
    yield from chain(
        doctor.packages(),
        doctor.config(doors.config),
        doctor.folder("state", doors.state_dir, is_private=True),
        doctor.folder("runs", doors.runs_dir),
        doctor.database_server(doors.database) if doors.database else doctor.database(doors.state_dir / "millrace.db"),
        doctor.storage(doors.storage),
        doctor.shared_memory(),
        doctor.gpus(),
        doctor.data(doors.data_root),
        _service(doors, server),
    )
    if not is_quick:
        yield from _ray(doors, address)


def _service(doors: Doors, server: str | None) -> Iterator[Finding]:
    with client_of(doors, server) as client:
        try:
            client.ready()
            identity = client.who()
        except Unreachable:
            mend = "`millrace serve` starts one; `millrace run` needs none"
            yield doctor.doubtful("service", f"nobody answers at {client.server}", mend)
        except Refused as error:
            yield doctor.bad("service", f"{client.server}: {error.problem.detail}", error.problem.remedy)
        else:
            yield doctor.good("service", f"{client.server} is ready and takes you for {identity.user}, {identity.role}")


def _ray(doors: Doors, address: str | None) -> Iterator[Finding]:
    try:
        with doors.cluster(address, Resources(cpus=1, gpus=0), None) as info:
            total = doors.runs().total_resources()
    except MillraceError as error:
        mend = "check the address and the network" if address else "see that /tmp has room and that no old Ray is left"
        yield doctor.bad("Ray", str(error), mend)
        return
    where = f"the cluster at {info.address}" if address else "it starts on this machine"
    told = f"{where}: {total.cpus:g} CPUs, {total.gpus:g} GPUs"
    if total.cpus < 1:
        yield doctor.bad("Ray", told, "start it with at least one CPU: `ray start --num-cpus`")
    else:
        yield doctor.good("Ray", told)


def print_findings(found: list[Finding], as_json: bool) -> int:
    """All of them, and what to do. Returns the exit status."""
    is_well = all(one.health is not Health.failed for one in found)
    if as_json:
        typer.echo(json.dumps({"ok": is_well, "findings": [one.model_dump(mode="json") for one in found]}))
        return OK if is_well else FAILED
    table = Table(box=None, show_header=False)
    for one in found:
        table.add_row(Text(one.part, style="bold"), Text(one.health, style=COLOURS[one.health]), Text(one.told))
        if one.mend:
            table.add_row("", "", Text(f"-> {one.mend}"))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    return OK if is_well else FAILED
