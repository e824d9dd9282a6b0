"""`millrace plan`: what it prints, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from tests.api.cli.fake_cli import cli_context
from tests.cost.test_planning import profile_of
from tests.service.fakes import FakeRuns
from trainers.spec import TrainSpec

Cli = Callable[..., Outcome]
SPEC = {"model": "mlp", "data": "digits", "workers": 4, "batch": 16}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    runs = FakeRuns()
    monkeypatch.chdir(tmp_path)
    Path("job.json").write_text(json.dumps(SPEC))

    def call(*arguments: object) -> Outcome:
        told = ["plan", "job.json", *map(str, arguments)]
        return CliRunner().invoke(build(cli_context(runs, tmp_path / "runs")), told)

    return call


def test_a_plan_on_a_described_cluster(cli: Cli) -> None:
    outcome = cli("--cluster", "big-basin", "--workers", "1,2,4", "--price", "2", "-o", "json")
    assert outcome.exit_code == 0, outcome.output
    plan = json.loads(outcome.stdout)
    assert [each["workers"] for each in plan["candidates"]] == [1, 2, 4]
    assert (plan["cluster"], plan["algorithm"], plan["per_worker"]) == ("big-basin", "sync", 16)
    assert plan["candidates"][0]["price"] > 0


def test_for_people_and_as_markdown_with_a_picture(cli: Cli) -> None:
    told = cli("--cluster", "big-basin", "--plot", "plan.png", "--set", "algorithm=downpour").stdout
    assert "Recommended: " in told
    assert "(T + tau)/tau" in told
    assert Path("plan.png").read_bytes().startswith(b"\x89PNG")
    assert "| workers | examples/s | speed-up |" in cli("--cluster", "ec2-g2", "-o", "md").stdout


def test_this_machine_by_a_kept_profile(cli: Cli) -> None:
    profile = profile_of(TrainSpec.model_validate(SPEC).model_copy())
    Path("kept.json").write_text(profile.model_dump_json())
    outcome = cli("--profile", "kept.json", "-o", "json")
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)["cluster"] == "this machine"
    refused = cli("--profile", "kept.json", "--set", "batch=32")
    assert refused.exit_code == 2
    assert "--profile: it is of batch.per_worker 16, and the spec has 32" in refused.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--workers", "1..64", "--cluster", "big-basin"), "--workers: 64 workers cannot share the 4 virtual workers"),
        (("--workers", "many", "--cluster", "big-basin"), "--workers: 'many' is no list of whole numbers"),
        (("--cluster", "moon"), "--cluster: there is no file moon"),
        (("--cluster", "big-basin", "--plot", "nowhere/plan.png"), "--plot: there is no folder nowhere"),
        (("--profile", "bad.json"), "--profile: bad.json is no profile: /of"),
        (("--cluster", "cluster.yaml"), "cluster.yaml: /links/net/bandwidth: 'GB' is no unit here"),
    ],
)
def test_what_is_wrong_is_one_line(cli: Cli, options: tuple[str, ...], told: str) -> None:
    Path("bad.json").write_text("{}")
    Path("cluster.yaml").write_text("{name: c, device: {name: d}, links: {net: {bandwidth: 6 GB}}, switches: []}")
    outcome = cli(*options)
    assert outcome.exit_code == 2
    assert told in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
