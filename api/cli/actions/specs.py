"""Reads what a caller wrote: specs and the names of states. What is wrong ends the command with status 2."""

from __future__ import annotations

from pathlib import Path

import typer

import service
from api.cli.connection import complain
from api.cli.context import BAD_INPUT


def read_job(spec_file: Path, sets: list[str]) -> service.JobSpec:
    """The spec in a file. Ends the command with one line for each field that is wrong."""
    try:
        return service.read_spec_file(spec_file, sets).resolved(Path.cwd())
    except service.SpecInvalid as error:
        raise as_exit(error, spec_file) from None


def print_checked(spec: service.JobSpec, as_json: bool) -> None:
    """A spec in full, and on the error stream what it asks for in vain, as far as its data's name tells."""
    typer.echo(spec.model_dump_json(indent=None if as_json else 2))
    examples = service.known_examples(spec.data)
    for warning in service.explain(spec.train, examples).warnings if examples is not None else ():
        complain(f"warning: {warning}")


def has_code(spec_file: Path, code: str | None, pointer: str = "/code") -> bool:
    """Whether the folder with the user's code is there; says so if it is not, before anything is started."""
    if code is None or Path(code).is_dir():
        return True
    complain(f"{spec_file}: {pointer}: there is no folder {code}")
    return False


def read_sweep(spec_file: Path, sets: list[str]) -> service.SweepSpec:
    """The sweep's spec in a file. Ends the command with one line for each field that is wrong."""
    try:
        spec = service.read_sweep_file(spec_file, sets).resolved(Path.cwd())
        service.configurations(spec)
    except service.SpecInvalid as error:
        raise as_exit(error, spec_file) from None
    return spec


def as_exit(error: service.SpecInvalid, spec_file: Path | None = None) -> typer.Exit:
    """Exit status 2, after one line for each field that is wrong."""
    prefix = "" if spec_file is None else f"{spec_file}: "
    for item in error.errors:
        complain(f"{prefix}{item.in_words}")
    return typer.Exit(BAD_INPUT)


def known_states(states: list[str]) -> tuple[service.State, ...]:
    """States by their names, in upper or lower case. Ends the command at an unknown one."""
    unknown = [state for state in states if state.upper() not in service.State.__members__]
    if unknown:
        complain(f"--state: {service.unknown(unknown[0].upper(), service.State)}")
        raise typer.Exit(BAD_INPUT)
    return tuple(service.State(state.upper()) for state in states)
