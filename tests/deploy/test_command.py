"""What the console's entry point begins before anything else."""

import os
import subprocess
import sys

import pytest
import typer

from api import CliContext, build
from deploy.command import starts_a_ray
from deploy.main import keep_named


@pytest.mark.parametrize("line", ["run job.yaml", "run --json job.yaml", "run"])
def test_a_run_of_its_own_starts_a_ray(line: str) -> None:
    assert starts_a_ray(line.split())


@pytest.mark.parametrize(
    "line", ["", "--help", "run --help", "run a.yaml --address=auto", "run a --address h:1", "list"]
)
def test_what_starts_none(line: str) -> None:
    assert not starts_a_ray(line.split())


@pytest.mark.parametrize("word", ["--help", "-h", "--version"])
def test_what_there_is_needs_no_settings(word: str) -> None:
    program = "import sys; from deploy.command import main\ntry: main()\nfinally: print('pydantic' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", program, word], capture_output=True, text=True, check=False,
        env={**os.environ, "MILLRACE_PORT": "none"},
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.endswith("False\n")
    assert "submit" in found.stdout or "millrace 0." in found.stdout


def test_a_command_reads_the_settings() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "deploy.command", "list", "--help"], capture_output=True, text=True, check=False,
        env={**os.environ, "MILLRACE_PORT": "none"},
    )  # fmt: skip
    assert found.returncode == 2
    assert "MILLRACE_PORT: Input should be a valid integer" in found.stderr


@pytest.mark.parametrize(("word", "is_group"), [("list", False), ("unarchive", False), ("token", True)])
def test_only_the_command_that_is_named_is_prepared(word: str, is_group: bool) -> None:
    app = build(CliContext.of_no_command())
    keep_named(app, [word])
    assert (len(app.registered_groups), len(app.registered_commands)) == ((1, 0) if is_group else (0, 1))
    found = typer.main.get_command(app)
    assert list(found.commands) == [word]  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [[], ["lst"], ["--help"]])
def test_all_commands_are_there_for_any_other_word(words: list[str]) -> None:
    app = build(CliContext.of_no_command())
    before = len(app.registered_commands), len(app.registered_groups)
    keep_named(app, words)
    assert (len(app.registered_commands), len(app.registered_groups)) == before
