"""`millrace plan`: what it prints, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from tests.api import test_plans
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service
from tests.cost.test_planning import profile_of
from tests.service.fakes import FakeRuns
from trainers.events import Result, State
from trainers.runtime.cluster import Resources
from trainers.runtime.event_log import EventLog
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
        (("--workers", "1..1000000", "--cluster", "ec2-g2"), "--workers: 1..1000000 is no range of up to 4096 workers"),
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


def test_a_simulation_shows_a_step_as_it_passes(cli: Cli) -> None:
    asked = ("--cluster", "ec2-g2", "--workers", "4", "--simulate", "1", "--set", "algorithm=downpour")
    told = cli(*asked).stdout
    assert "Simulated, 4 workers: " in told
    assert f"A step of 4 workers:\n{'worker 0':17} |" in told
    assert "serves one" in told
    plan = json.loads(cli(*asked, "-o", "json").stdout)
    assert cli(*asked, "--plot", "step.png").exit_code == 0
    assert Path("step.png").read_bytes().startswith(b"\x89PNG")
    (each,) = plan["candidates"]
    rows = [row["who"] for row in each["simulated"]["timeline"]["tracks"]]
    assert rows == [*(f"worker {number}" for number in range(4)), "the fullest shard", "shard 2 by size"]


def test_a_live_service_makes_the_plan(cli: Cli, service: Service) -> None:
    """Over HTTP: what it counts, what it plans with, and what its jobs tell of a target."""
    there = ("--server", service.url, "--cluster", "big-basin")
    outcome = cli(*there, "--workers", "1,2,4", "--price", "2", "--simulate", "1", "-o", "json")
    assert outcome.exit_code == 0, outcome.output
    asked = {"workers": "1,2,4", "cluster": "big-basin", "price": 2, "simulate": 1}
    assert json.loads(outcome.stdout) == service.client.plan(SPEC, **asked).model_dump(mode="json")
    assert service.runs.counted == ["mlp"], "it counts, once, and not this machine"
    assert "Recommended: 4 workers" in cli(*there, "--workers", "4").stdout
    service.runs.total = Resources(cpus=64, gpus=0)
    job = test_plans.ended(service, 0.5, 0.91, **SPEC)
    target = json.loads(cli(*there, "--target", "test_accuracy=0.9", "-o", "json").stdout)["target"]
    assert (target["jobs"], target["epochs"]) == ([job], 2)


def test_a_live_service_plans_for_its_own_machine_or_by_a_profile_from_here(
    cli: Cli, service: Service, tmp_path: Path
) -> None:
    refused = cli("--server", service.url)
    assert refused.exit_code == 2
    assert "/profile: this service keeps no profile of this minibatch on its machine" in refused.stderr
    profile = profile_of(TrainSpec.model_validate(SPEC)).model_dump_json()
    Path("kept.json").write_text(profile)
    given = cli("--server", service.url, "--profile", "kept.json", "-o", "json")
    assert (given.exit_code, json.loads(given.stdout)["device"]) == (0, "d")
    folder = tmp_path / "runs" / "profiles"  # of the service
    folder.mkdir(parents=True)
    (folder / "digits.json").write_text(profile)
    assert cli("--server", service.url, "-o", "json").stdout == given.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--workers", "8"), "/workers: 8 workers cannot share the 4 virtual workers of the spec"),
        (("--target", "test_accuracy=0.99"), "/target: test_accuracy 0.99: the only run of this job has not"),
        (("--nodes", "99"), "/nodes: big-basin has 44 nodes, not 99"),
    ],
)
def test_a_live_service_refuses_with_the_field(cli: Cli, service: Service, options: tuple[str, ...], told: str) -> None:
    service.runs.total = Resources(cpus=64, gpus=0)
    test_plans.ended(service, 0.5, 0.91, **SPEC)
    outcome = cli("--server", service.url, "--cluster", "big-basin", *options)
    assert outcome.exit_code == 2
    assert told in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def ended(runs: Path, spec: dict[str, object], *accuracies: float, noise_scale: float | None = None) -> None:
    """A run that has succeeded, with an evaluation after each epoch, and its last checkpoint."""
    train = TrainSpec.model_validate(spec)
    about = runs / "checkpoints" / "0000000004" / "position.json"
    about.parent.mkdir(parents=True)
    about.write_text(json.dumps({"spec": train.model_dump(mode="json")}))
    log = EventLog(runs)
    for epoch, accuracy in enumerate(accuracies, 1):
        log.append("evaluation", {"epoch": epoch, "examples": 1000 * epoch, "step": epoch, "test_accuracy": accuracy})
    result = Result(
        job_id=runs.name, state=State.SUCCEEDED, epochs=len(accuracies), examples=1000 * len(accuracies),
        test_accuracy=None, test_loss=None, train_loss=None, examples_per_s=1.0, wall_s=1.0, algorithm="sync",
        workers=4, model_path=None, message="", noise_scale=noise_scale,
    )  # fmt: skip
    log.append("result", result.model_dump(mode="json"))
    log.close()


def test_the_time_to_a_target_from_runs_trials_and_studies_of_this_machine(cli: Cli, tmp_path: Path) -> None:
    plan = ("--cluster", "big-basin", "--workers", "1,4", "--target", "test_accuracy=0.9")
    told = cli(*plan)
    assert told.exit_code == 0, told.output
    assert "Time to test_accuracy 0.9: unknown. This trial would tell: the job on 4 workers" in told.stdout
    runs = tmp_path / "runs"
    ended(runs / "job-1", SPEC | {"seed": 7, "epochs": 3}, 0.5, 0.91, 0.95)
    ended(runs / "sweep-1/runs/job-2", SPEC, 0.5, 0.7, 0.8, 0.92)
    ended(runs / "scaling/digits/runs/job-3", SPEC | {"workers": 4}, 0.5, 0.7, 0.92)
    ended(runs / "job-4", SPEC | {"batch": 8}, 0.95)  # another job
    found = json.loads(cli(*plan, "--price", "3.6", "-o", "json").stdout)
    target, rates = found["target"], {each["workers"]: each["examples_per_s"] for each in found["candidates"]}
    assert (sorted(target["jobs"]), target["epochs"]) == (["job-1", "job-2", "job-3"], 3)
    assert target["seconds"]["4"] == pytest.approx(3000 / rates[4])
    assert target["prices"]["4"] == pytest.approx(3000 / rates[4] / 3600 * 4 * 3.6)
    told = cli(*plan)
    assert "3 epochs, from 3 runs of this job." in told.stdout
    missed = cli(*plan[:-1], "test_accuracy=0.99")
    assert missed.exit_code == 2
    assert (
        "--target: test_accuracy 0.99: none of 3 runs of this job has reached it; the closest had 0.95" in missed.stderr
    )


def test_a_metric_without_its_set_is_that_by_which_runs_are_judged(cli: Cli, tmp_path: Path) -> None:
    plan = ("--cluster", "big-basin", "--target", "accuracy=0.9")
    assert "Time to test_accuracy 0.9: unknown" in cli(*plan).stdout
    ended(tmp_path / "runs" / "job-1", SPEC, 0.91)
    assert "1 epochs, from 1 run of this job." in cli(*plan).stdout
    assert "Time to validation_accuracy 0.9: unknown" in cli(*plan, "--set", "data.validation=0.1").stdout


def test_a_trial_is_told_with_its_number_of_workers(cli: Cli) -> None:
    plan = ("--cluster", "big-basin", "--target", "test_accuracy=0.9", "--set")
    for workers, told in ((1, "1 worker"), (2, "2 workers")):  # 2 is the default, which its spec leaves out
        assert f"the job on {told} (`target.trials`" in cli(*plan, f"workers={workers}").stdout


def test_where_asked_runs_with_other_batches_tell_by_their_noise_scale(cli: Cli, tmp_path: Path) -> None:
    measuring = {
        "algorithm": {"name": "sync", "noise_scale": True},
        "batch": 8,
        "optimizer": {"name": "sgd", "lr": 0.1},
    }
    ended(tmp_path / "runs" / "job-1", SPEC | measuring, 0.5, 0.91, noise_scale=96.0)
    ended(tmp_path / "runs" / "job-2", SPEC | measuring, 0.91)  # which has not measured it
    plan = ("--cluster", "big-basin", "--workers", "4", "--target", "test_accuracy=0.9", "--set", "optimizer=sgd")
    assert "unknown. This trial would tell" in cli(*plan).stdout
    found = json.loads(cli(*plan, "--noise-scale", "-o", "json").stdout)
    target, (planned,) = found["target"], found["candidates"]
    grows = (1 + 4 * 16 / 96.0) / (1 + 4 * 8 / 96.0)
    assert (target["jobs"], target["noise_scale"]) == (["job-1"], 96.0)
    assert target["epochs"] == pytest.approx(2 * grows)
    assert target["seconds"]["4"] == pytest.approx(2000 * grows / planned["examples_per_s"])
    assert (
        "from 1 run with other batches, at a gradient noise scale of 96 examples." in cli(*plan, "--noise-scale").stdout
    )
    ended(tmp_path / "runs" / "job-3", SPEC | {"optimizer": "sgd"}, 0.5, 0.6, 0.95)  # the job itself
    own = json.loads(cli(*plan, "--noise-scale", "-o", "json").stdout)["target"]
    assert (own["jobs"], own["noise_scale"], own["epochs"]) == (["job-3"], None, 3)
    without = cli("--cluster", "big-basin", "--noise-scale")
    assert (without.exit_code, without.stderr) == (
        2,
        "--noise-scale: only goes with --target, of which it tells; leave it out\n",
    )


def test_of_an_asynchronous_job_a_trial_is_named_for_each_number_of_workers(cli: Cli, tmp_path: Path) -> None:
    downpour = SPEC | {"algorithm": "downpour"}
    ended(tmp_path / "runs" / "job-1", downpour, 0.95)
    plan = ("--cluster", "ec2-g2", "--set", "algorithm=downpour", "--workers", "1,4,8", "--target", "test_accuracy=0.9")
    told = cli(*plan, "-o", "md")
    assert told.exit_code == 0, told.output
    assert " on 4 (workers); 1 epochs, from 1 run of this job." in told.stdout
    assert "on other numbers of workers: unknown. These 2 trials would tell: the job on 1, 8 workers" in told.stdout


def test_nodes_are_filled_one_after_the_other(cli: Cli) -> None:
    outcome = cli("--cluster", "big-basin", "--nodes", "1,2", "--set", "workers=16", "-o", "json")
    assert outcome.exit_code == 0, outcome.output
    assert [(each["workers"], each["nodes"]) for each in json.loads(outcome.stdout)["candidates"]] == [(8, 1), (16, 2)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--cluster", "big-basin", "--nodes", "1,2", "--workers", "8"), "--nodes: numbers of workers are given too;"),
        (("--cluster", "big-basin", "--nodes", "many"), "--nodes: 'many' is no list of whole numbers above 0"),
        (("--cluster", "big-basin", "--nodes", "1..99"), "--nodes: big-basin has 44 nodes, not 99"),
        (("--profile", "kept.json", "--nodes", "1"), "--nodes: a profile is of one machine; give a cluster, or links"),
        (("--cluster", "big-basin", "--target", "0.9"), "--target: '0.9' is no target; write for instance test_acc"),
        (
            ("--cluster", "big-basin", "--target", "test_perplexity=28"),
            "--target: classification measures accuracy, loss, top5_accuracy, and no 'perplexity'; take one of these",
        ),
        (
            ("--cluster", "big-basin", "--target", "validation_accuracy=0.9"),
            "--target: the job has no validation set, so its runs have no validation_accuracy; write test_accuracy=0.9",
        ),
        (("--server", "http://127.0.0.1:9", "--cluster", "big-basin"), "127.0.0.1:9"),
    ],
)
def test_each_option_is_refused_by_its_name(cli: Cli, options: tuple[str, ...], told: str) -> None:
    Path("kept.json").write_text(profile_of(TrainSpec.model_validate(SPEC)).model_dump_json())
    outcome = cli(*options)
    assert outcome.exit_code in (1, 2)
    assert told in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
