"""The command line: its exit statuses, what it prints for people and for machines, and Ctrl-C."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from rich.console import Console
from typer.testing import CliRunner

from api import build
from api.cli.actions.jobs import job_table
from service import NodeGroup
from tests.api.cli.fake_cli import SCRIPTS, cli_context
from tests.api.conftest import Service, eventually
from tests.service.fakes import FakeRuns, whole_run
from trainers.events import State

ROOT = Path(__file__).parents[3]
MILLRACE = Path(sys.executable).parent / "millrace"
RESULT = {
    "job_id", "state", "epochs", "examples", "test_accuracy", "test_loss", "train_loss", "examples_per_s", "wall_s",
    "algorithm", "workers",
}  # fmt: skip

Cli = Callable[..., Outcome]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text("algorithm: downpour\nepochs: 3\n")
    return path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    def call(*arguments: object, runs: FakeRuns | None = None, server: str = "http://127.0.0.1:9") -> Outcome:
        app = build(cli_context(runs or FakeRuns(script=whole_run), tmp_path / "runs", server))
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


def test_run_trains_and_ends_with_one_json_object(cli: Cli, spec: Path, tmp_path: Path) -> None:
    outcome = cli("run", spec, "-o", "json", "--set", "epochs=2")
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(outcome.stdout.splitlines()[-1])
    assert set(result) >= RESULT
    assert (result["state"], result["epochs"], result["algorithm"]) == ("SUCCEEDED", 2, "downpour")
    assert len(outcome.stdout.splitlines()) == 1  # what people read is on the other stream
    assert "epoch 2  test accuracy 0.9020" in outcome.stderr
    assert "Ray dashboard" not in outcome.stderr
    assert (tmp_path / "runs" / result["job_id"] / "events.jsonl").exists()


@pytest.mark.parametrize("option", [["--dashboard"], ["--address", "192.0.2.1:6379"]], ids=" ".join)
def test_run_tells_where_rays_dashboard_is(cli: Cli, spec: Path, option: list[str]) -> None:
    assert "Ray dashboard: http://127.0.0.1:8265" in cli("run", spec, *option).stdout


def test_run_for_people_and_in_a_folder_of_ones_own(cli: Cli, spec: Path, tmp_path: Path) -> None:
    outcome = cli("run", spec, "--run-dir", tmp_path / "mine", "--trace", "4")
    assert outcome.exit_code == 0
    assert "SUCCEEDED: 3 epochs" in outcome.stdout
    assert str(tmp_path / "mine") in outcome.stdout
    outcome = cli("run", spec, "--run-dir", tmp_path / "mine")
    assert outcome.exit_code == 2
    assert "holds a run already" in outcome.stderr
    outcome = cli("run", spec, "--run-dir", spec / "run")
    assert outcome.exit_code == 2
    assert f"{spec} is no folder; name one" in outcome.stderr


def test_a_failed_run_has_status_one_and_a_result(cli: Cli, spec: Path) -> None:
    outcome = cli("run", spec, "-o", "json", runs=FakeRuns(script=SCRIPTS["failing"]))
    assert outcome.exit_code == 1
    result = json.loads(outcome.stdout.splitlines()[-1])
    assert (result["state"], result["epochs"]) == ("FAILED", 1.0)
    assert "NaN at step 12" in result["message"]


@pytest.mark.parametrize(
    ("text", "sets", "lines"),
    [
        (
            "algorithm: {name: downpour, num_push: 4, max_staleness: 1}\nepochs: 0",
            [],
            ["/algorithm/max_staleness: ", "/epochs: "],
        ),
        ("surprise: 1", [], ["/surprise: "]),
        ("a: [", [], ["not valid YAML in line 2, column 1: did not find"]),
        ("epochs: 1", ["workers=0"], ["/workers/count: "]),
        ("epochs: 1", ["epochs"], ["'epochs' is not of the form"]),
        ("epochs: 1", ["code=/nowhere"], ["/code: there is no folder /nowhere"]),
        ("epochs: 1", ["workers=9"], ["/workers: the job needs 9 CPUs"]),
    ],
)
def test_bad_input_has_status_two_one_line_a_field_and_starts_nothing(
    cli: Cli, spec: Path, text: str, sets: list[str], lines: list[str]
) -> None:
    spec.write_text(text)
    runs = FakeRuns()
    outcome = cli("run", spec, *(f"--set={one}" for one in sets), runs=runs)
    assert outcome.exit_code == 2
    told = outcome.stderr.splitlines()
    assert len(told) == len(lines)
    assert all(line.startswith(f"{spec}: {start}") for line, start in zip(told, lines, strict=True)), told
    assert runs.runs == {}


def test_run_on_a_cluster_that_may_grow(spec: Path, tmp_path: Path) -> None:
    """One of its own does not."""
    context = cli_context(FakeRuns(script=whole_run), tmp_path / "runs", grows_to=(NodeGroup(nodes=3, cpus=3),))
    large = [str(spec), "--set=workers=9"]
    assert CliRunner().invoke(build(context), ["run", *large, "--address=192.0.2.1:6379"]).exit_code == 0
    refused = CliRunner().invoke(build(context), ["run", *large])
    assert refused.exit_code == 2
    assert refused.stderr == (
        f"{spec}: /workers: the job needs 9 CPUs and 0 GPUs at once, the cluster has 4 and 0; ask for fewer workers "
        "or for less a worker\n"
    )


def test_missing_files_and_unknown_options_have_status_two(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("run", tmp_path / "none.yaml")
    assert outcome.exit_code == 2
    assert "No such file" in outcome.stderr
    assert cli("run").exit_code == 2
    assert cli("dance").exit_code == 2


def test_explain_tells_the_recipe_and_starts_nothing(cli: Cli, spec: Path) -> None:
    sets = ["batch.base=16", "scaling=linear", "optimizer.lr=0.01", "algorithm=sync", "batch.per_worker=16"]
    outcome = cli("explain", spec, *(f"--set={one}" for one in sets), "-o", "json")
    assert outcome.exit_code == 0, outcome.output
    recipe = json.loads(outcome.stdout)
    told = {name: quantity["value"] for name, quantity in recipe["quantities"].items()}
    assert (told["batch"], told["factor"], told["learning_rate"], told["examples"]) == (32, 2, 0.02, 1437)
    assert [phase["name"] for phase in recipe["phases"]] == ["start", "last update"]
    told_people = cli("explain", spec).stdout
    assert "weight_decay" in told_people
    assert "last update" in told_people
    assert "paper 4: Goyal et al. 2017, Accurate, large minibatch SGD" in told_people


def test_explain_reads_the_data_where_their_name_does_not_tell(cli: Cli, spec: Path) -> None:
    outcome = cli("explain", spec, "--set", "data=sets:letters")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"{spec}: /data/name: sets:letters: module 'sets' is not on the path")
    outcome = cli("explain", spec, "--set", "data=sets:letters", "--examples", 640, "-o", "json")
    assert json.loads(outcome.stdout)["quantities"]["steps_per_epoch"]["value"] == 20
    assert cli("explain", spec, "--set", "epochs=0").exit_code == 2


def test_a_service_that_is_not_there(cli: Cli, spec: Path) -> None:
    outcome = cli("submit", spec)
    assert outcome.exit_code == 1
    assert "`millrace serve` starts one" in outcome.stderr


def test_submit_list_show_watch_logs_cancel(
    cli: Cli, spec: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Outcome:
        outcome = cli(*arguments, server=service.url)
        assert outcome.exit_code == 0, outcome.output
        return outcome

    job = json.loads(call("submit", spec, "-o", "json", "--key", "k").stdout.splitlines()[-1])
    assert set(job) >= RESULT
    again = json.loads(call("submit", spec, "-o", "json", "--key", "k").stdout)
    assert again["job_id"] == again["id"] == job["job_id"], "as a run's result has it, and as REST"
    run = service.started(job["job_id"])
    run.state(State.RUNNING)
    figures = {"epoch": 1, "examples": 1000, "seconds": 0.1, "test_loss": 2.0, "test_perplexity": 7.4}
    run.emit("evaluation", **figures, headline="perplexity", higher_is_better=False)
    run.step(1.5)
    eventually(lambda: service.client.get(run.job_id).progress == 0.5)
    assert json.loads(call("show", run.job_id, "-o", "json").stdout)["progress"] == 0.5
    assert "50%" in call("show", run.job_id).stdout
    assert "perplexity 7.4" in next(line for line in call("list").stdout.splitlines() if run.job_id in line)
    (listed,) = json.loads(call("list", "-o", "json").stdout)["jobs"]
    assert (listed["id"], listed["headline"], listed["headline_value"]) == (run.job_id, "perplexity", 7.4)
    assert run.job_id not in call("list", "--state", "failed").stdout
    whole = call("submit", spec, "--dry-run").stdout
    assert json.loads(whole)["algorithm"]["num_fetch"] == 1
    assert "CANCELLING" in call("cancel", run.job_id).stdout
    assert run.cancelled.wait(30)
    run.state(State.CANCELLED, "Cancelled", "checkpoint written")
    outcome = cli("watch", run.job_id, "-o", "json", server=service.url)
    assert outcome.exit_code == 1
    assert json.loads(outcome.stdout.splitlines()[-1])["state"] == "CANCELLED"
    assert "STATE CANCELLED" in call("logs", run.job_id).stdout
    assert "STATE CANCELLED" in call("logs", "-f", run.job_id).stdout


def test_what_the_service_refuses_has_status_two(cli: Cli, spec: Path, service: Service) -> None:
    outcome = cli("show", "nosuchjob", server=service.url)
    assert (outcome.exit_code, outcome.stderr.strip()) == (2, "there is no job 'nosuchjob'")
    outcome = cli("submit", spec, "--set", "workers=9", server=service.url)
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"{spec}: the job needs 9 CPUs")
    assert cli("list", "--state", "dreaming", server=service.url).exit_code == 2


def test_watch_follows_a_job_to_success(cli: Cli, spec: Path, service: Service) -> None:
    service.runs.script = whole_run
    outcome = cli("submit", spec, "--watch", "-o", "json", server=service.url)
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout.splitlines()[-1])["test_accuracy"] == 0.97


@contextmanager
def fake(script: str, *arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.api.cli.fake_cli", script, *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"{words!r} never came: {process.communicate()}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_a_run_cleanly(spec: Path, tmp_path: Path, number: signal.Signals) -> None:
    with fake("polite", "run", str(spec), cwd=tmp_path) as process:
        read_until(process, "STATE RUNNING")
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "CANCELLED" in stdout
    assert "checkpoint written" in stdout
    assert "Stopping cleanly" in stderr
    assert "swept 0" in stderr


def test_a_second_ctrl_c_ends_it_at_once(spec: Path, tmp_path: Path) -> None:
    with fake("stubborn", "run", str(spec), "--run-dir", "here", cwd=tmp_path) as process:
        read_until(process, "STATE RUNNING")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "Once more" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "FAILED" in stdout
    assert "swept 1" in stderr
    last = json.loads((tmp_path / "here" / "events.jsonl").read_text().splitlines()[-1])
    assert last["data"]["reason"] == "Interrupted"


def test_ctrl_c_on_watch_detaches(spec: Path, tmp_path: Path, service: Service) -> None:
    job = service.client.submit({"epochs": 3})
    run = service.started(job.id)
    run.state(State.RUNNING)
    with fake("stubborn", "watch", job.id, "--server", service.url, cwd=tmp_path) as process:
        read_until(process, "STATE RUNNING")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert "Detached; the job goes on" in stderr
    assert process.returncode == 130
    assert run.cancels == 0
    assert service.client.get(job.id).state is State.RUNNING


def millrace(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MILLRACE, *arguments], capture_output=True, text=True, timeout=90, check=False, env=environment
    )


def test_the_installed_command(tmp_path: Path) -> None:
    assert "submit" in millrace("--help").stdout
    assert set(json.loads(millrace("schema").stdout)["properties"]) >= {"algorithm", "workers", "name", "priority"}
    bad = tmp_path / "bad.yaml"
    bad.write_text("algorithm: {name: downpour, num_push: 4, max_staleness: 1}")
    outcome = millrace("run", str(bad))
    assert outcome.returncode == 2
    assert outcome.stderr.startswith(f"{bad}: /algorithm/max_staleness: ")
    outcome = millrace("serve", "--host", "0.0.0.0", "--state-dir", str(tmp_path / "state"))
    assert outcome.returncode == 2
    assert "refusing to listen on 0.0.0.0 without a token" in outcome.stderr
    assert not (tmp_path / "state").exists()
    outcome = millrace("list", MILLRACE_PORT="many")
    assert (outcome.returncode, outcome.stderr[:14]) == (2, "MILLRACE_PORT:")


def test_the_version(cli: Cli) -> None:
    outcome = cli("--version")
    assert (outcome.exit_code, outcome.stdout) == (0, f"millrace {version('millrace')}\n")


@pytest.mark.parametrize("width", [100, 40, 20])
def test_ids_stand_in_tables_whole(width: int, service: Service) -> None:
    job = service.client.submit({"name": "a-name-of-many-letters-" * 2, "labels": {"a": "b"}})
    out = Console(width=width, file=StringIO())
    out.print(job_table(list(service.client.list())))
    assert job.id in out.file.getvalue()


def test_a_server_is_named_without_a_scheme_too(cli: Cli, service: Service) -> None:
    outcome = cli("list", "--server", service.url.removeprefix("http://"))
    assert outcome.exit_code == 0, outcome.output
    assert cli("list", "--state", "RUNNINGX").stderr == "--state: there is no 'RUNNINGX'; did you mean RUNNING?\n"
