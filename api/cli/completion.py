"""Shell completion of the ids of jobs and sweeps. It asks the service, and stays silent if that does not answer."""

import contextlib
from itertools import islice

import typer

from api.cli.context import CliContext

MOST = 50
TIMEOUT_S = 1.0


def job_ids(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest jobs and sweeps whose ids begin with `incomplete`, each with its name and state."""
    import httpx2

    from api.cli.connection import client_of
    from api.client.client import Refused, Unreachable

    cli = context.find_object(CliContext)
    found: list[tuple[str, str]] = []
    if cli is None:
        return found
    with contextlib.suppress(Refused, Unreachable), client_of(cli, context.params.get("server")) as client:
        client.http.timeout = httpx2.Timeout(TIMEOUT_S)
        found += [(job.id, f"{job.name} {job.state}") for job in islice(client.list(), MOST)]
        found += [(sweep.id, f"{sweep.name} {sweep.state}") for sweep in islice(client.sweeps(), MOST)]
    return [(name, description) for name, description in found if name.startswith(incomplete)]
