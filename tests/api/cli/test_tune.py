"""`millrace tune`: what it prints, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from api.cli.actions.tune import NOTHING
from tests.api.cli.fake_cli import cli_context
from tests.service.fakes import FakeRuns
from trainers.models.products.table import processor_name

Cli = Callable[..., Outcome]


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "job.yaml"
    file.write_text("model: {name: mlp, kwargs: {hidden: 1024}}\ndata: {name: digits, limit: 64}\nbatch: 8\n")
    app = build(cli_context(FakeRuns(), tmp_path / "runs"))
    return lambda *options: CliRunner().invoke(app, ["tune", str(file), *options])


def test_the_layers_of_a_job_are_measured_once(tune: Cli, tmp_path: Path) -> None:
    outcome = tune("-o", "json")
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    table = Path(found["table"])
    assert table == tmp_path / ".cache" / "millrace" / "products.json"
    assert [row["product"] for row in found["products"]][:1] == ["outputs 64x1024, 8 rows"]
    assert len(found["products"]) == 3
    assert set(json.loads(table.read_text())) == {found["processor"]} == {processor_name()}
    written = table.read_text()
    told = tune().stdout
    assert table.read_text() == written
    assert told.splitlines()[0] == found["processor"]
    for row in found["products"]:
        (line,) = (line for line in told.splitlines() if row["product"] in line)
        assert line.split()[-1] == ("oneDNN" if row["onednn"] else "library")
    assert tune("--set", "batch=16", "-o", "json").exit_code == 0  # of other rows
    assert len(json.loads(table.read_text())[found["processor"]]) == 6


def test_a_job_without_anything_to_measure(tune: Cli) -> None:
    outcome = tune("--set", "model.kwargs.hidden=16")
    assert (outcome.exit_code, outcome.stdout) == (0, NOTHING + "\n")


def test_a_spec_that_cannot_be_trained_has_status_two(tune: Cli) -> None:
    outcome = tune("--set", "data.root=/nowhere", "--set", "data.name=mnist")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
