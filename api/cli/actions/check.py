"""`millrace check`: whether a job's model gives the same bits on any number of workers."""

from pathlib import Path

import typer

from api.cli.actions.specs import read_job
from api.cli.connection import complain
from api.cli.context import BAD_INPUT, FAILED, OK
from service import MillraceError


def check_spec(spec_file: Path, sets: list[str], as_json: bool) -> int:
    """Try it and say what came of it. Returns the exit status."""
    spec = read_job(spec_file, sets)
    from service import check_bits

    try:
        found = check_bits(spec.train)
    except MillraceError as error:
        complain(str(error))
        return BAD_INPUT
    if as_json:
        typer.echo(found.model_dump_json())
        return OK if found.same else FAILED
    if found.same:
        typer.echo(f"The same bits on one and on two processes, in {found.steps} steps")
    else:
        typer.echo(f"{found.differs} is the first that differs, after step {found.steps}")
        typer.echo(found.cause)
    if found.changed:
        typer.echo(f"Changed while it trained, and no buffers: {', '.join(found.changed)}")
    return OK if found.same else FAILED
