"""Walks through the README: its blocks are run as they stand there, in their order, in a working copy."""

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.docs.readme import BLOCKS, Place, blocks, serving
from trainers import ClusterInfo
from trainers.export import described

CURL = "With a server, by curl"
ON_COMMAND_LINE = "With a server, on the command line"
PYTHON = "From Python"
MODEL = "The finished model"


def shape(line: str) -> str:
    """A line of output without what differs from run to run."""
    return re.sub(r"[\d.,]+", "0", re.sub(r"(Job |(/\S*)?runs/)\w+", "JOB", line))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "copy")


@pytest.mark.timeout(180)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_a_job_by_curl(place: Place) -> None:
    with serving(place, CURL):
        told = place.shell("\n".join(blocks(CURL, "bash")), within_s=150)
    stream, _, rest = told.partition('"state":"SUCCEEDED"')
    events = re.findall(r"^id: (\d+)\nevent: (\w+)\ndata: ", stream, re.MULTILINE)
    assert [int(number) for number, _ in events] == list(range(1, len(events) + 1))
    assert {kind for _, kind in events} >= {"state", "actors", "step", "epoch", "evaluation", "checkpoint", "result"}
    assert "STATE SUCCEEDED" in rest  # the log
    *_, listed = re.findall(r'\{"jobs":.*', rest)
    (job,) = json.loads(listed)["jobs"]
    assert job["labels"] == {"team": "blue"}
    assert job["state"] in ("CANCELLING", "CANCELLED")


def test_training_and_loading_from_python(
    place: Place, cluster: ClusterInfo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process and on its Ray, to save the time; `test_python_as_a_program` starts one."""
    monkeypatch.chdir(place.folder)
    names: dict[str, object] = {}
    for code in (*blocks(PYTHON, "python"), *blocks(MODEL, "python")):
        exec(compile(code, "README.md", "exec"), names)
    *_, last = capsys.readouterr().out.splitlines()
    measured, promised = last.split(" is ")
    assert float(measured) == pytest.approx(float(promised), abs=1e-6)
    assert float(measured) > 0.9
    (model,) = (place.folder / "runs").glob("*/model.safetensors")
    assert described(model).image_shape == (1, 8, 8)  # what `millrace export` goes by


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_python_as_a_program(place: Place) -> None:
    told = place.python("\n".join((*blocks(PYTHON, "python"), *blocks(MODEL, "python"))))
    assert re.search(r"^0\.9\d* is 0\.9", told, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_jobs_on_the_command_line_and_by_the_client(place: Place) -> None:
    with serving(place, CURL):
        told = place.shell("\n".join(blocks(ON_COMMAND_LINE, "bash")), within_s=150)
        client = place.python("\n".join(blocks(PYTHON, "python", "with the server")))
    assert "SUCCEEDED: 3 epochs" in told
    assert "STATE CANCELLED" in told
    (job,) = json.loads(told.splitlines()[-1])["jobs"]
    assert job["state"] == "CANCELLED"
    assert "20 0.9" in client
    assert "SUCCEEDED" in client


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_runs_without_a_server(place: Place) -> None:
    told = place.shell("\n".join(blocks("On this machine, without a server", "bash")), within_s=150)
    assert re.search(r"^SUCCEEDED: 20 epochs.* test accuracy 0\.9[5-9]", told, re.MULTILINE)
    shapes = {shape(line) for line in told.splitlines()}
    (excerpt,) = blocks("Two commands", "text")
    assert {shape(line) for line in excerpt.splitlines()} <= shapes
    result = json.loads(told.splitlines()[-1])
    assert (result["state"], result["epochs"]) == ("SUCCEEDED", 5)
    runs = list((place.folder / "runs").iterdir())
    assert len(runs) == 2
    assert all({"events.jsonl", "checkpoints", "model.safetensors"} <= {p.name for p in run.iterdir()} for run in runs)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_going_on_from_a_checkpoint(place: Place) -> None:
    told = place.shell("\n".join(blocks("Checkpoints", "bash")), within_s=150)
    first, second = re.findall(r"^SUCCEEDED: .*", told, re.MULTILINE)
    assert first.startswith("SUCCEEDED: 5 epochs, 7,185 examples")
    assert second.startswith("SUCCEEDED: 20 epochs, 28,740 examples")
    assert "epoch 6 " in told.partition(first)[2]
    assert "epoch 5 " not in told.partition(first)[2]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_model_in_other_formats(place: Place) -> None:
    pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    told = place.shell("\n".join(blocks("In other formats", "bash")), within_s=150)
    assert told.count("Loaded again, its logits differ by at most") == 2
    assert {"model.pt2", "model.onnx"} <= {path.name for path in (place.folder / "runs" / "finished").iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_own_model_and_dataset(place: Place) -> None:
    section = "Your own model and dataset"
    told = place.shell("\n".join(blocks(section, "bash")))
    assert re.search(r"^SUCCEEDED: 6 epochs.* test accuracy (1\.0|0\.9[5-9])", told, re.MULTILINE)
    place.python("\n".join(blocks(section, "python")))
    assert load_file(place.folder / "runs/own-code/model.safetensors")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_same_bits(place: Place) -> None:
    told = place.shell("\n".join(blocks("The same bits on any number of workers", "bash")), within_s=150)
    assert told.splitlines()[-1] == "the same bits"


def test_the_recipe(place: Place) -> None:
    told = [line.split() for line in place.shell("\n".join(blocks("The recipe", "bash"))).splitlines()]
    assert ["rate_factor", "32", "factor"] in [words[:3] for words in told]
    assert ["rate_factor", "5.6568542", "sqrt(factor)"] in [words[:3] for words in told]
    assert ["drop", "1", "30", "38435010", "0.32"] in [words[:5] for words in told]


def test_a_papers_experiment_is_checked_without_its_data(place: Place) -> None:
    (code,) = blocks("The papers' experiments", "bash")
    told = json.loads(place.shell(code))
    assert (told["workers"]["count"], told["batch"]["per_worker"], told["scaling"]["name"]) == (256, 32, "linear")


def test_what_a_layer_costs(place: Place) -> None:
    section = "What a layer costs"
    told = place.shell("\n".join(blocks(section, "bash")))
    (shown,) = blocks(section, "text")
    assert {line.rstrip() for line in shown.splitlines()} <= {line.rstrip() for line in told.splitlines()}
    assert '"kinds":{"convolution":' in told
    assert "The plot is in layers.png" in told
    assert (place.folder / "layers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(420)
def test_a_sweep_and_its_report(place: Place) -> None:
    told = place.shell("\n".join(blocks("Sweeps: how large can the batch be?", "bash")), within_s=400)
    assert "SUCCEEDED" in told
    report = place.folder / "runs" / "small" / "report"
    assert {"report.json", "report.md", "error.png", "error.svg"} <= {path.name for path in report.iterdir()}
    (variant,) = json.loads((report / "report.json").read_text())["variants"]
    assert variant["baseline"]["batch"] == 8
    assert variant["answer"][0] in told


def test_every_block_that_can_be_run_is_run() -> None:
    """By a test of this folder; a new section needs one."""
    walked = {
        CURL, ON_COMMAND_LINE, PYTHON, MODEL, "On this machine, without a server", "Checkpoints",
        "Your own model and dataset", "The same bits on any number of workers", "Bad input, and how commands end",
        "The recipe", "The papers' experiments", "What a layer costs", "Sweeps: how large can the batch be?",
        "In other formats",
    }  # fmt: skip
    runnable = {block.section for block in BLOCKS if block.language in ("bash", "python") and block.is_run}
    assert runnable == walked
    assert {block.note for block in BLOCKS if block.is_run} == {"", "server", "after the server", "with the server"}
