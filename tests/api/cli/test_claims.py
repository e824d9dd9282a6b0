"""`millrace claims`: the list, what is refused, and a quick run on a real Ray."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from service import all_claims
from tests.api.cli.fake_cli import cli_context
from tests.service.fakes import FakeRuns

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
