"""`millrace check`: what it prints, and its exit status."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from tests.api.cli.fake_cli import cli_context
from tests.service.fakes import FakeRuns
from trainers.training import bits_check

Cli = Callable[..., Outcome]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Of a model that does `how`. Its processes are slow to start, so what they do is done here."""

    def trained(spec: bits_check.TrainSpec, _processes: int, folder: Path) -> object:
        folder.mkdir()
        bits_check._work(bits_check.tried(spec, 1).model_dump_json(), 0, 1, str(folder))
        found = bits_check._read(folder / "0.json", 0)
        return found["steps"], tuple(found["changed"])

    monkeypatch.setattr(bits_check, "_trained", trained)
    file = tmp_path / "job.yaml"
    file.write_text("model: {name: tests.training.uncheckednets:careless}\ndata: {name: digits, limit: 12}\nbatch: 2\n")
    app = build(cli_context(FakeRuns(), tmp_path / "runs"))

    def call(how: str, *options: str) -> Outcome:
        return CliRunner().invoke(app, ["check", str(file), "--set", f"model.kwargs.how={how}", *options])

    return call


def test_a_model_that_keeps_the_promise(check: Cli) -> None:
    outcome = check("well")
    assert (outcome.exit_code, outcome.stdout) == (0, "The same bits on one and on two processes, in 10 steps\n")
    found = json.loads(check("counts", "-o", "json").stdout)
    assert (found["same"], found["changed"]) == (True, ["Careless.calls"])


def test_a_model_that_breaks_it_is_told_with_its_first_parameter(check: Cli) -> None:
    outcome = check("unseeded")
    assert outcome.exit_code == 1
    first, cause, changed = outcome.stdout.splitlines()
    assert first == "first.weight is the first that differs, after step 1"
    assert cause == bits_check.UNREPEATABLE
    assert changed == "Changed while it trained, and no buffers: Careless.generator"
    found = json.loads(check("unseeded", "-o", "json").stdout)
    assert (found["same"], found["differs"]) == (False, "first.weight")


def test_a_spec_that_cannot_be_trained_has_status_two(check: Cli) -> None:
    outcome = check("well", "--set", "data.root=/nowhere", "--set", "data.name=mnist")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "/nowhere" in outcome.stderr
