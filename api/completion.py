"""What the shell may complete: ids of jobs and sweeps, asked of the service, in silence where it does not answer."""

import contextlib
from itertools import islice

import typer

MOST = 50
WITHIN_S = 1.0


def job_ids(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The newest jobs and sweeps whose ids begin so, with what they are."""
    import httpx2

    from api.cli import Doors
    from api.client import Refused, Unreachable
    from api.commands import client_of

    doors = context.find_object(Doors)
    found: list[tuple[str, str]] = []
    if doors is None:
        return found
    with contextlib.suppress(Refused, Unreachable), client_of(doors, context.params.get("server")) as client:
        client.http.timeout = httpx2.Timeout(WITHIN_S)
        found += [(job.id, f"{job.name} {job.state}") for job in islice(client.list(), MOST)]
        found += [(sweep.id, f"{sweep.name} {sweep.state}") for sweep in islice(client.sweeps(), MOST)]
    return [(name, told) for name, told in found if name.startswith(incomplete)]
