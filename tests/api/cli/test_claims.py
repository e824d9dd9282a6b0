"""`millrace claims`: the list, what is refused, and a quick run on a real Ray."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from service import TrialStore, all_claims
from service.sweeps import control, driver, local
from tests.api.cli.fake_cli import cli_context
from tests.service.fakes import FakeRuns
from trainers.events import State

Cli = Callable[..., Outcome]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    context = cli_context(FakeRuns(), tmp_path / "runs")
    return lambda *arguments: CliRunner().invoke(build(context), ["claims", *arguments])


def test_the_list(cli: Cli) -> None:
    listed = json.loads(cli("-o", "json").stdout)["claims"]
    assert [row["name"] for row in listed] == list(all_claims())
    assert {row["verdict"] for row in listed} == {""}
    assert "warm-up" in cli().stdout


def test_what_is_refused(cli: Cli) -> None:
    unknown = cli("nonsense")
    assert unknown.exit_code == 2
    assert "there is no claim 'nonsense', only " in unknown.stderr
    wrong = cli("warm-up", "--set", "job.epoch=3")
    assert wrong.exit_code == 2
    assert "did you mean epochs?" in wrong.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_pauses_the_sweep_and_the_same_command_goes_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Where it was cancelled, its trials would have ended for good."""
    monkeypatch.setattr(control, "keep", lambda *_: os.kill(os.getpid(), number))
    monkeypatch.setattr(local, "ensure_own_ray", lambda: None)
    for of_ray in ("kill_driver", "wait_for_exit", "recover"):
        monkeypatch.setattr(driver, of_ray, lambda _: None)
    ended = cli("shuffle", "--quick")
    assert ended.exit_code == 1
    assert "The same command goes on with it." in ended.stderr
    store = TrialStore(tmp_path / "runs" / "claims" / "shuffle-quick")
    assert store.state is State.PAUSED
    assert {trial.state for trial in store.trials()} == {State.QUEUED}
    resumed = local.LocalSweep.open(store.spec, store.folder)
    assert resumed.store.state is State.QUEUED
