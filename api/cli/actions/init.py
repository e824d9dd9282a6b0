"""What `millrace init` does: it copies a folder of templates."""

import re
import shlex
import shutil
from pathlib import Path

import typer

from api.cli.connection import complain
from api.cli.context import BAD_INPUT, OK
from api.cli.folders import cannot_be_made

TEMPLATES = Path(__file__).parents[1] / "templates"
HERE = re.compile(r"^( *(?:code|root): )\.(/\S+)? ", re.MULTILINE)
"""What of a template's spec becomes a path in the folder, so that the job may be run from anywhere."""


def init_folder(folder: Path, task: str) -> int:
    """Write a task, or a model, with its dataset, spec and test. Returns the exit status."""
    if (why := cannot_be_made(folder)) is not None:
        complain(why)
        return BAD_INPUT
    if folder.exists() and any(folder.iterdir()):
        complain(f"{folder} is not empty; name a folder that is not there yet")
        return BAD_INPUT
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted((TEMPLATES / task).iterdir()):
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
    spec = folder / "job.yaml"
    whole = folder.resolve()
    spec.write_text(HERE.sub(lambda at: f"{at[1]}{_quoted(whole / (at[2] or '').strip('/'))} ", spec.read_text()))
    told = ", ".join(sorted(path.name for path in folder.iterdir()))
    typer.echo(f"{folder} has {told}")
    typer.echo(f"Train it:  millrace run {shlex.quote(str(spec))}")
    typer.echo(f"Test it:   python -m pytest {shlex.quote(str(folder))}")
    return OK


def _quoted(path: Path) -> str:
    """As YAML reads it, whatever is in it."""
    return "'" + str(path).replace("'", "''") + "'"
