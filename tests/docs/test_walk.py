"""Walks through README.md and the guide: every block is run as it stands there, in its order, in a working copy.

A page that needs a server has one for all of its blocks; operations, storage and REST share one.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.docs.readme import ROOT, TEXTS, Place, blocks, serving
from trainers import ClusterInfo
from trainers.training.export import described

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # ten times the longest, on two cores that do nothing else

WALKED = {
    "README": {"On the command line", "By curl", "From Python"},
    "quick-start": {
        "On this machine, without a server", "With a server, by curl", "With a server, on the command line",
        "From Python",
    },
    "specs": {"Checked before anything starts"},
    "tasks": {"A task of your own"},
    "data-and-models": {"Your own model and dataset", "Your own model, trained"},
    "checkpoints": {"Go on from a checkpoint", "The finished model", "In other formats"},
    "recipe": {"What belongs to what"},
    "algorithms/downpour": {"Delay compensation", "Asynchronous local SGD"},
    "algorithms/hybrid": {"Projections"},
    "algorithms/mixed": {"A region that is cut off"},
    "algorithms/easgd": {"What outlives a worker"},
    "papers": {"The papers' experiments"},
    "claims/index": {"Ask one"},
    "costs": {"Counted", "Timed", "Products"},
    "plan": {"A plan", "After the run"},
    "scaling-tables": {"Run it"},
    "sweeps": {"A first sweep"},
    "elasticity": {"The same bits on any number of workers"},
    "guarantees": {"Shown by", "The standby of a shard"},
    "operations": {
        "Is this machine ready?", "Tokens", "Start and stop", "The config file", "Jobs of others", "Webhooks",
        "Tokens that end",
    },
    "audit": {"The audit"},
    "projects": {"Create one, submit into it", "Quotas", "By REST and from Python"},
    "storage": {"Copies of runs", "Backup"},
    "registry": {"Register, list, fetch", "By REST and from Python"},
    "rest": {
        "Who calls", "Errors", "What there is to choose from", "A job, checked and made once", "Events", "The queue",
        "Changes after the submission",
        "Pause, scale, resume, fork", "Checkpoints", "Figures over time", "Plans", "From Python",
    },
    "webhooks": {"Made", "Checked"},
}  # fmt: skip
"""The sections whose blocks the tests of this file run."""

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")


def shape(line: str) -> str:
    """A line of output without what differs from run to run."""
    return re.sub(r"[\d.,]+", "0", re.sub(r"(Job |(/\S*)?runs/)\w+", "JOB", line))


def assert_is_a_whole_stream(stream: str) -> None:
    """Events from the first on, without a gap, and of every kind."""
    events = re.findall(r"^id: (\d+)\nevent: (\w+)\ndata: ", stream, re.MULTILINE)
    assert [int(number) for number, _ in events] == list(range(1, len(events) + 1))
    assert {kind for _, kind in events} >= {"state", "actors", "step", "epoch", "evaluation", "checkpoint", "result"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "copy")


@needs_curl
def test_a_job_by_curl(place: Place) -> None:
    with serving(place, "README"):
        told = place.shell("\n".join(blocks("README", "bash", "By curl")))
    stream, _, rest = told.partition('"state":"SUCCEEDED"')
    assert_is_a_whole_stream(stream)
    assert '"state":"SUCCEEDED"' in rest


def test_training_and_loading_from_python(
    place: Place, cluster: ClusterInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process and on its Ray, to save the time; `test_python_as_a_program` starts one."""
    monkeypatch.chdir(place.folder)
    names: dict[str, object] = {}
    for code in blocks("checkpoints", "python"):
        exec(compile(code, "checkpoints.md", "exec"), names)
    *_, last = capsys.readouterr().out.splitlines()
    measured, promised = last.split(" is ")
    assert float(measured) == pytest.approx(float(promised), abs=1e-6)
    assert float(measured) > 0.9
    (model,) = (place.folder / "runs").glob("*/model.safetensors")
    assert described(model).image_shape == (1, 8, 8)  # what `millrace export` goes by
    (code,) = blocks("README", "python")
    exec(compile(code, "README.md", "exec"), names)
    accuracy, path = capsys.readouterr().out.splitlines()[-1].split()
    assert float(accuracy) > 0.9
    assert Path(path).is_file()


@pytest.mark.slow
def test_python_as_a_program(place: Place) -> None:
    told = place.python("\n".join((*blocks("README", "python"), *blocks("checkpoints", "python"))))
    assert re.search(r"^0\.9\d* is 0\.9", told, re.MULTILINE)


@pytest.mark.slow
@needs_curl
def test_the_quick_start_with_a_server(place: Place) -> None:
    page = "quick-start"
    with serving(place, page):
        told = place.shell("\n".join(blocks(page, "bash", "With a server, by curl")))
        stream, _, rest = told.partition('"state":"SUCCEEDED"')
        assert_is_a_whole_stream(stream)
        assert "STATE SUCCEEDED" in rest  # the log
        *_, listed = re.findall(r'\{"jobs":.*', rest)
        (job,) = json.loads(listed)["jobs"]
        assert job["labels"] == {"team": "blue"}
        assert job["state"] in ("CANCELLING", "CANCELLED")
        told = place.shell("\n".join(blocks(page, "bash", "With a server, on the command line")))
        client = place.python("\n".join(blocks(page, "python", note="with the server")))
    assert "SUCCEEDED: 3 epochs" in told
    assert "STATE CANCELLED" in told
    assert {job["state"] for job in json.loads(told.splitlines()[-1])["jobs"]} == {"CANCELLED"}
    assert "20 0.9" in client
    assert "SUCCEEDED" in client


def test_the_quick_start_trains_as_the_readme_does() -> None:
    """It is run once, by `test_training_and_loading_from_python`."""
    assert blocks("quick-start", "python", "From Python") == blocks("README", "python")


@pytest.mark.slow
def test_runs_without_a_server(place: Place) -> None:
    page, section = "quick-start", "On this machine, without a server"
    told = place.shell("\n".join(blocks(page, "bash", section)))
    assert re.search(r"^SUCCEEDED: 20 epochs.* test accuracy 0\.9[5-9]", told, re.MULTILINE)
    shapes = {shape(line) for line in told.splitlines()}
    (excerpt,) = blocks(page, "text", "Install")
    assert {shape(line) for line in excerpt.splitlines()} <= shapes
    result = json.loads(told.splitlines()[-1])
    assert (result["state"], result["epochs"]) == ("SUCCEEDED", 5)
    runs = list((place.folder / "runs").iterdir())
    assert len(runs) == 2
    assert all({"events.jsonl", "checkpoints", "model.safetensors"} <= {p.name for p in run.iterdir()} for run in runs)
    told = place.shell("\n".join(blocks("README", "bash", "On the command line")))
    assert re.search(r"^SUCCEEDED: 5 epochs", told, re.MULTILINE)


@pytest.mark.slow
def test_going_on_from_a_checkpoint(place: Place) -> None:
    told = place.shell("\n".join(blocks("checkpoints", "bash", "Go on from a checkpoint")))
    first, second = re.findall(r"^SUCCEEDED: .*", told, re.MULTILINE)
    assert first.startswith("SUCCEEDED: 5 epochs, 7,185 examples")
    assert second.startswith("SUCCEEDED: 20 epochs, 28,740 examples")
    events = Path(told.split("Everything is in ")[-1].strip(), "events.jsonl").read_text().splitlines()
    ended = [event["data"]["epoch"] for event in map(json.loads, events) if event["type"] == "epoch"]
    assert ended == list(range(6, 21))


@pytest.mark.slow
def test_the_model_in_other_formats(place: Place) -> None:
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    told = place.shell("\n".join(blocks("checkpoints", "bash", "In other formats")))
    assert told.count("Loaded again, its outputs differ by at most") == 2
    assert {"model.pt2", "model.onnx"} <= {path.name for path in (place.folder / "runs" / "finished").iterdir()}


def test_a_task_of_ones_own(place: Place) -> None:
    told = place.shell("\n".join(blocks("tasks", "bash", "A task of your own")))
    assert re.search(r"^SUCCEEDED: 10 epochs.* test found (1\.0|0\.[4-9])", told, re.MULTILINE), told


@pytest.mark.slow
def test_own_model_and_dataset(place: Place) -> None:
    told = place.shell("\n".join(blocks("data-and-models", "bash")))
    assert re.search(r"^SUCCEEDED: 6 epochs.* test accuracy (1\.0|0\.9[5-9])", told, re.MULTILINE)
    place.python("\n".join(blocks("data-and-models", "python")))
    assert load_file(place.folder / "runs/own-code/model.safetensors")


@pytest.mark.slow
def test_the_same_bits(place: Place) -> None:
    told = place.shell("\n".join(blocks("elasticity", "bash")))
    assert told.splitlines()[-1] == "the same bits"


def test_bad_input_is_answered_as_shown(place: Place) -> None:
    (code,), (text,) = blocks("specs", "bash"), blocks("specs", "text")
    assert place.shell(code).strip() == text


def test_the_recipe(place: Place) -> None:
    told = [line.split() for line in place.shell("\n".join(blocks("recipe", "bash"))).splitlines()]
    assert ["rate_factor", "32", "factor"] in [words[:3] for words in told]
    assert ["rate_factor", "5.6568542", "sqrt(factor)"] in [words[:3] for words in told]
    assert ["drop", "1", "30", "38435010", "0.32"] in [words[:5] for words in told]
    late, delta = blocks("algorithms/downpour", "bash")
    assert ["outer", "0.7", "d"] in [line.split()[:3] for line in place.shell(delta).splitlines()]
    told = [line.split() for line in place.shell(late).splitlines()]
    assert ["late_gradients", "delay_compensated", "g"] in [words[:3] for words in told]
    assert ["optimizer_state", "16", "bytes"] in [words[:3] for words in told]
    (elastic,) = blocks("algorithms/easgd", "bash")
    assert ["elastic", "0.45", "v"] in [line.split()[:3] for line in place.shell(elastic).splitlines()]


def test_two_regions_are_told(place: Place) -> None:
    explained, _ = blocks("algorithms/mixed", "bash")
    told = [line.split() for line in place.shell(explained).splitlines()]
    assert ["batch", "16", "g", "n"] in [words[:4] for words in told]
    assert ["outer", "1", "d"] in [words[:3] for words in told]


def test_projections_are_told_and_counted(place: Place) -> None:
    told = [line.split() for line in place.shell("\n".join(blocks("algorithms/hybrid", "bash"))).splitlines()]
    assert ["connect", "2", "blocks,", "rank", "64"] in [words[:5] for words in told]
    assert ["fc2.projection", "fully", "connected"] in [words[:3] for words in told]


def test_a_papers_experiment_is_checked_without_its_data(place: Place) -> None:
    (code,) = blocks("papers", "bash")
    told = json.loads(place.shell(code))
    assert (told["workers"]["count"], told["batch"]["per_worker"], told["scaling"]["name"]) == (256, 32, "linear")


def test_what_a_layer_costs(place: Place) -> None:
    told = place.shell("\n".join(blocks("costs", "bash")))
    (shown,) = blocks("costs", "text")
    assert {line.rstrip() for line in shown.splitlines()} <= {line.rstrip() for line in told.splitlines()}
    assert '"kinds":{"convolution":' in told
    assert "The plot is in layers.png" in told
    assert (place.folder / "layers.png").read_bytes().startswith(b"\x89PNG")


def test_what_more_workers_would_bring(place: Place) -> None:
    told = place.shell("\n".join(["export HOME=$PWD", *blocks("plan", "bash")]), within_s=300)
    assert told.count("Recommended: ") == 2
    assert "Kept for plans, and for predictions of runs." in told
    assert "examples a second were predicted from" in told
    assert "held back by" in told
    assert (place.folder / "digits.json").exists()
    assert (place.folder / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_sweep_and_its_report(place: Place) -> None:
    told = place.shell("\n".join(blocks("sweeps", "bash")), within_s=400)
    assert "SUCCEEDED" in told
    report = place.folder / "runs" / "small" / "report"
    assert {"report.json", "report.md", "error.png", "error.svg"} <= {path.name for path in report.iterdir()}
    (variant,) = json.loads((report / "report.json").read_text())["variants"]
    assert variant["baseline"]["batch"] == 8
    assert variant["answer"][0] in told


def test_a_job_on_several_numbers_of_workers(place: Place) -> None:
    told = place.shell("\n".join(blocks("scaling-tables", "bash")), within_s=400)
    assert "Time to an error of 20.00 %" in told
    found = json.loads((place.folder / "runs" / "scaling" / "digits-downpour" / "scaling.json").read_text())
    assert [(row["workers"], row["state"]) for row in found["rows"]] == [(1, "SUCCEEDED"), (2, "SUCCEEDED")]
    assert (place.folder / "scaling.png").stat().st_size


def test_a_claim_of_the_papers(place: Place) -> None:
    told = place.shell("\n".join(blocks("claims/index", "bash")), within_s=400)
    assert "**The claim holds" in told
    assert (place.folder / "runs" / "claims" / "shuffle-quick" / "claim.svg").exists()


@needs_curl
def test_a_service_for_others(place: Place) -> None:
    """Operations, what is kept, and REST: one after the other, on one server."""
    told = place.shell("\n".join(blocks("operations", "bash", note="before the server")))
    assert "refusing to listen on 0.0.0.0 without a token" in told
    assert "exit status 2" in told
    with serving(place, "operations"):
        assert_operations(place)
        assert_audit(place)
        assert_storage(place)
        assert_projects(place)
        assert_registry(place)
        assert_rest(place)


def assert_operations(place: Place) -> None:
    """What its commands print."""
    told = place.shell("\n".join(blocks("operations", "bash")), within_s=400)
    assert '{"status":"ok"}{"status":"ok"}{"user":"wall","role":"viewer","token":' in told
    assert '"status":401' in told
    assert re.search(r"^SUCCEEDED: 3 epochs", told, re.MULTILINE)
    assert "takes you for ann, user" in told
    assert "no, revoked" in told


def assert_audit(place: Place) -> None:
    """What its commands print."""
    told = place.shell("\n".join(blocks("audit", "bash")))
    assert re.search(r"root +admin +127\.0\.0\.1 +webhook\.delete", told)
    assert re.search(r"local +admin +\S+@\S+ +token\.revoke", told)
    assert '"user":"ann","role":"user","token":' in told
    assert '"action": "job.submit"' in told


def assert_storage(place: Place) -> None:
    """What its commands print and leave."""
    told = place.shell("\n".join(blocks("storage", "bash")))
    assert "takes what is written and gives it back" in told
    assert re.search(r"copy +(is being copied|copied) to", told)
    assert (place.folder / "backup.db").stat().st_size > 0


def assert_projects(place: Place) -> None:
    """What its commands print."""
    told = place.shell("\n".join(blocks("projects", "bash")))
    assert re.search(r"^ *admins +eve *$", told, re.MULTILINE)
    assert re.search(r"^ *vision +2 +0 of 1 +0 of 2 +0 +0 of 10 GB +0 +ann +eve", told, re.MULTILINE)
    assert re.search(r"^ *members +ann, bob *$", told, re.MULTILINE)
    assert '"quota":{"jobs":null,"cpus":null,"gpus":0.0,"disk_bytes":10000000000}' in told
    assert '"project":"vision"' in told


def assert_registry(place: Place) -> None:
    """What its commands print and leave."""
    told = place.shell("\n".join(blocks("registry", "bash")))
    assert "digits@1 is the model of job" in told
    assert '"versions":[{"id":"digits@1"' in told
    assert told.split()[-1] == "8"
    assert (place.folder / "digits.pt").is_file()


def assert_rest(place: Place) -> None:
    """What its commands and its program print."""
    told = place.shell("\n".join(blocks("rest", "bash")))
    assert '{"user":"root","role":"admin","token":' in told
    assert '"pointer":"/epochs"' in told
    made = re.findall(r"location: (/v1/jobs/\S+)", told, re.IGNORECASE)
    assert (len(made), len(set(made))) == (2, 1)
    assert '"state":"PAUSING"' in told
    assert '"name":"careful"' in told
    assert '"name":"loss","x":"epoch"' in told
    assert "no figure is called 'lost'" in told
    assert (place.folder / "model.safetensors").stat().st_size > 0
    assert "idempotent-replayed: true" in told.lower()
    assert '"algorithm":"downpour","per_worker":' in told
    assert "no cluster has this name" in told
    told = place.shell("\n".join(blocks("webhooks", "bash")))
    assert "169.254.169.254, which is not an address of the public network" in told
    secrets = [json.loads(line)["secret"] for line in re.findall(r'\{"id".*?"secret":"[^"]+"\}', told)]
    assert len(secrets) == 1
    schema = json.loads(place.shell("curl -sS http://127.0.0.1:8466/openapi.json"))
    assert addresses() == set(schema["paths"])
    assert place.python("\n".join(blocks("webhooks", "python"))).startswith("not from us")
    told = place.python("\n".join(blocks("rest", "python")))
    assert "the job needs 99 CPUs" in told
    assert "SUCCEEDED" in told


def addresses() -> set[str]:
    """Those in the table of the page on REST; one without `/v1` goes on from what stands before it."""
    rows = re.findall(r"^\| (`(?:GET|POST) .*?) \|", TEXTS["rest"], re.MULTILINE)
    found: set[str] = set()
    for row in rows:
        base = ""
        for address in re.findall(r"`(?:\w+ )?(/[^`]*)`", row):
            if address.startswith("/v1/") or "}" not in base:
                base = address
                found.add(address)
            else:
                found.add(base[: base.index("}") + 1] + address)
    return found


def test_the_tests_that_show_the_guarantees_are_there() -> None:
    """They are run with all the others; here it counts that the commands find them."""
    _, regions = blocks("algorithms/mixed", "bash")
    commands = [shlex.split(code) for code in [*blocks("guarantees", "bash"), regions]]
    assert all(words[:4] == ["python", "-m", "pytest", "-q"] for words in commands)
    program = "import json, sys, pytest; sys.exit(any([pytest.main(words) for words in json.loads(sys.argv[1])]))"
    arguments = json.dumps([[*words[3:], "--collect-only"] for words in commands])
    collected = subprocess.run([sys.executable, "-c", program, arguments], cwd=ROOT, capture_output=True, check=False)
    assert collected.returncode == 0, collected.stdout.decode()
