"""The arguments and options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli.completion import job_ids


class Output(StrEnum):
    """Who reads the output: people, or a program."""

    text = "text"
    json = "json"


class RoleName(StrEnum):
    """What a caller may do."""

    viewer = "viewer"
    user = "user"
    admin = "admin"


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
ProjectOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The project that it belongs to.", show_default=False)
]
ListedOption = Annotated[
    str | None, typer.Option("--project", metavar="NAME", help="Only of this project.", show_default=False)
]
KeyOption = Annotated[str | None, typer.Option(help="Idempotency key: the same one makes one job.")]
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
