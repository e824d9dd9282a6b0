"""`millrace links`, on links that nobody has measured."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from tests.api.cli.fake_cli import cli_context
from tests.cost.test_links import table
from tests.cost.test_planning import profile_of
from tests.service.fakes import FakeRuns
from trainers.cost.clusters.links import LinkTable
from trainers.errors import RunFailed
from trainers.spec import TrainSpec

SPEC = {"model": "mlp", "data": "digits", "workers": {"count": 2, "virtual": 8}, "batch": 16}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    monkeypatch.chdir(tmp_path)

    def measured(counts: tuple[int, ...], on_done: Callable[[int, int], None]) -> LinkTable:
        on_done(1, 1)
        if counts == (3,):
            raise RunFailed("10.0.0.1 cannot reach 10.0.0.2 by process_group: timed out; open the ports")
        return table()

    monkeypatch.setattr("service.measure_links", measured)
    return lambda *told: CliRunner().invoke(build(cli_context(FakeRuns(), tmp_path / "runs")), list(map(str, told)))


def test_links_are_kept_and_planned_with(cli: Callable[..., Outcome]) -> None:
    outcome = cli("links")
    assert outcome.exit_code == 0, outcome.output
    assert "process_group" in outcome.stdout
    assert "For `millrace plan --links links.json`." in outcome.stdout
    assert json.loads(cli("links", "-o", "json").stdout) == json.loads(Path("links.json").read_text())
    spec = TrainSpec.model_validate(SPEC)
    Path("job.json").write_text(json.dumps(SPEC))
    Path("profile.json").write_text(profile_of(spec).model_dump_json())
    plan = cli("plan", "job.json", "--profile", "profile.json", "--links", "links.json", "-o", "json")
    assert json.loads(plan.stdout)["cluster"] == "2 measured nodes"


@pytest.mark.parametrize(
    ("told", "status", "error"),
    [
        (("links", "--at-once", "3"), 1, "10.0.0.1 cannot reach 10.0.0.2 by process_group"),
        (("links", "--at-once", "0"), 2, "--at-once: '0' is no list of whole numbers above 0"),
        (("links", "--at-once", "1..64"), 2, "--at-once: at most 16 transfers, not 64"),
        (("links", "--file", "nowhere/links.json"), 2, "--file: there is no folder nowhere"),
        (("plan", "job.json", "--links", "links.json"), 2, "--links: links.json cannot be read: No such file"),
        (("plan", "job.json", "--links", "links.json", "--cluster", "big-basin"), 2, "--links: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(cli: Callable[..., Outcome], told: tuple[str, ...], status: int, error: str) -> None:
    Path("job.json").write_text(json.dumps(SPEC))
    outcome = cli(*told)
    assert outcome.exit_code == status, outcome.output
    assert error in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
