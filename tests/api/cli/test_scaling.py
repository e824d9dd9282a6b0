"""`millrace scaling`: what is refused, with the option or the field; a prediction alone comes from a kept profile."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from tests.api.cli.fake_cli import cli_context
from tests.service.fakes import FakeRuns

Cli = Callable[..., Outcome]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(
        "{name: mine, algorithm: downpour, data: digits, model: mlp, batch: 16, epochs: 1}"
    )
    context = cli_context(FakeRuns(), tmp_path / "runs")
    return lambda *arguments: CliRunner().invoke(build(context), ["scaling", "job.yaml", *arguments])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--workers", "0,2"], "--workers: '0,2' is no list of whole numbers above 0"),
        (["--until", "accuracy"], "--until: 'accuracy' is no target; write METRIC=VALUE"),
        (["--until", "accuracy=2"], "--until: accuracy lies between 0 and 1"),
        (["--plot", "nowhere/a.png"], "--plot: there is no folder nowhere"),
        (
            ["--workers", "1,8", "--set", "workers.max=4"],
            "--workers: workers.count 8: /workers/max: the run begins with",
        ),
        (["--set", "epoch=3"], "did you mean epochs?"),
    ],
)
def test_what_is_refused(cli: Cli, arguments: list[str], told: str) -> None:
    outcome = cli(*arguments)
    assert outcome.exit_code == 2
    assert told in outcome.stderr
    assert not Path("runs/scaling").exists()


def test_a_prediction_alone_needs_no_cluster(cli: Cli) -> None:
    outcome = cli("--simulate", "--workers", "1,2", "-o", "json")
    assert outcome.exit_code == 0, outcome.stderr
    rows = json.loads(outcome.stdout)["rows"]
    assert [(row["workers"], row["state"], row["examples_per_s"]) for row in rows] == [
        (1, "NOT RUN", None), (2, "NOT RUN", None),
    ]  # fmt: skip
    assert rows[1]["predicted_speed_up"] > 0
    kept = Path("runs/scaling/mine/profile.json")
    before = kept.read_bytes()
    assert cli("--simulate", "--workers", "1,2").exit_code == 0
    assert kept.read_bytes() == before
    assert "it is of batch.per_worker 16" in cli("--simulate", "--set", "batch=8").stderr
