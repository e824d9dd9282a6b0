"""`millrace doctor`: checks everything that a run or a service needs, and says how to repair what is wrong."""

import json
from collections.abc import Iterator

import typer
from rich.table import Table
from rich.text import Text

from api.cli.connection import client_of
from api.cli.context import FAILED, OK, CliContext
from api.cli.display import wide_console
from api.client.client import Refused, Unreachable
from service import Finding, Health, Installation, MillraceError, Resources, examine

COLOURS = {Health.ok: "green", Health.warning: "yellow", Health.failed: "red"}


def findings(context: CliContext, server: str | None, address: str | None, is_quick: bool) -> Iterator[Finding]:
    """Check everything; the quick checks come first."""
    yield from examine(
        Installation(
            config=context.config,
            state_dir=context.state_dir,
            runs_dir=context.runs_dir,
            data_root=context.data_root,
            database=context.database,
            storage=context.storage,
        )
    )
    yield _service(context, server)
    if not is_quick:
        yield _ray(context, address)


def _service(context: CliContext, server: str | None) -> Finding:
    with client_of(context, server) as client:
        try:
            client.ready()
            identity = client.who()
        except Unreachable:
            remedy = "`millrace serve` starts one; `millrace run` needs none"
            return Finding.doubtful("service", f"nobody answers at {client.server}", remedy)
        except Refused as error:
            return Finding.bad("service", f"{client.server}: {error.problem.detail}", error.problem.remedy)
        return Finding.good("service", f"{client.server} is ready and takes you for {identity.user}, {identity.role}")


def _ray(context: CliContext, address: str | None) -> Finding:
    try:
        with context.cluster(address, Resources(cpus=1, gpus=0), None) as info:
            total = context.runs().total_resources()
            is_open = address is not None and context.runs().cluster_is_open(info.address)
    except MillraceError as error:
        remedy = (
            "check the address and the network" if address else "see that /tmp has room and that no old Ray is left"
        )
        return Finding.bad("Ray", str(error), remedy)
    growth = context.growth(address)
    where = f"the cluster at {info.address}" if address else "it starts on this machine"
    size = f"{where}: {total.cpus:g} CPUs, {total.gpus:g} GPUs"
    if growth.groups:
        size += f"; may grow to {' and '.join(map(str, growth.groups))}"
    elif total.cpus < 1:
        remedy = "start it with at least one CPU: `ray start --num-cpus`; or set `grows_to`, if it has an autoscaler"
        return Finding.bad("Ray", size, remedy)
    if is_open:
        remedy = "give every node of it a token (RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH); docs/deployment.md"
        return Finding.doubtful("Ray", f"{size}; it runs the code of everybody who can reach it", remedy)
    return Finding.good("Ray", size)


def print_findings(found: list[Finding], as_json: bool) -> int:
    """Print all of them, with their remedies. Returns the exit status."""
    is_good = all(one.health is not Health.failed for one in found)
    if as_json:
        typer.echo(json.dumps({"ok": is_good, "findings": [one.model_dump(mode="json") for one in found]}))
        return OK if is_good else FAILED
    table = Table(box=None, show_header=False)
    for one in found:
        table.add_row(Text(one.part, style="bold"), Text(one.health, style=COLOURS[one.health]), Text(one.message))
        if one.remedy:
            table.add_row("", "", Text(f"-> {one.remedy}"))
    wide_console(200).print(table)
    return OK if is_good else FAILED
