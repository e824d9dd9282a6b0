"""`millrace profile` and `--dry-run`: what they print, and what they refuse."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from tests.api.cli.fake_cli import cli_context
from tests.service.fakes import FakeRuns

ROOT = Path(__file__).parents[3]
Cli = Callable[..., Outcome]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    runs = FakeRuns()

    def call(*arguments: object) -> Outcome:
        outcome = CliRunner().invoke(
            build(cli_context(runs, tmp_path / "runs")), [str(argument) for argument in arguments]
        )
        assert not runs.runs
        return outcome

    return call


def test_a_model_layer_by_layer(cli: Cli) -> None:
    outcome = cli("profile", "--model", "lenet5", "-o", "json")
    assert outcome.exit_code == 0, outcome.output
    cost = json.loads(outcome.stdout)
    assert [layer["name"] for layer in cost["layers"]] == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert cost["whole"]["parameters"] == 61_706
    assert cost["images"] == {"shape": [1, 28, 28], "classes": 10}
    assert cost["kinds"]["convolution"]["parameters"] == pytest.approx(0.0417, abs=1e-4)
    told = [line.split() for line in cli("profile", "--model", "lenet5").stdout.splitlines()]
    assert ["conv1", "convolution", "0.24", "0.24"] in [words[:4] for words in told]
    assert ["convolution", "84.4%", "4.2%", "96.7%"] in told
    assert ["all", "0.83", "1.43", "100.0", "61,706", "100.0", "6,518", "100.0"] in told


def test_a_spec_in_place_of_a_name(cli: Cli) -> None:
    path = ROOT / "examples/digits-downpour.yaml"
    cost = json.loads(cli("profile", "--model", path, "--set", "model.kwargs.hidden=16", "-o", "json").stdout)
    assert cost["images"] == {"shape": [1, 8, 8], "classes": 10}
    assert cost["whole"]["parameters"] == (parameters := 64 * 16 + 16 + 16 * 10 + 10)
    assert cost["memory"]["vectors"] == 8 * parameters  # in shards, the optimizer's state is not the worker's
    assert cost["memory"]["activations"] == 4 * cost["whole"]["activities"] * 32
    assert "for parameters and gradient, and" in cli("profile", "--model", path).stdout
    explained = cli("explain", path, "--memory", "--set", "model.kwargs.hidden=16", "-o", "json").stdout
    assert json.loads(explained)["memory"] == cost["memory"]
    assert "for parameters and gradient, and" in cli("explain", path, "--memory").stdout
    own = ROOT / "examples/own_code/job.yaml"
    outcome = cli("profile", "--model", own, "--set", f"code={own.parent}", "--classes", 3)
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("--classes: shapes:shapes does not tell the rest; give --image and --classes")
    arguments = ("--set", f"code={own.parent}", "--image", "1x28x28", "--classes", "3", "-o", "json")
    assert json.loads(cli("profile", "--model", own, *arguments).stdout)["images"]["classes"] == 3


def test_a_spec_whose_data_must_be_read(cli: Cli, tmp_path: Path) -> None:
    """And `explain`, which counts their examples."""
    (tmp_path / "fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 20)
    spec = tmp_path / "gpt.yaml"
    gpt = "{name: gpt, kwargs: {layers: 1, heads: 2, width: 16}}"
    spec.write_text(f"task: language_model\nmodel: {gpt}\ndata: {{name: text, root: {tmp_path}/fox.txt, context: 8}}\n")
    cost = json.loads(cli("profile", "--model", spec, "-o", "json").stdout)
    layers = {layer["name"]: layer["cost"] for layer in cost["layers"]}
    assert cost["images"] is None
    assert cost["example"] == "one example of text, 8 tokens each, vocabulary 256"
    (connected,) = {c["forward_flops"] for name, c in layers.items() if name.endswith("expand")}
    assert connected == 2 * 8 * 16 * 64
    assert "for one example of text" in cli("profile", "--model", spec).stdout
    outcome = cli("profile", "--model", spec, "--image", "1x2x2")
    assert (outcome.exit_code, outcome.stderr.partition(":")[0]) == (2, "--image")
    recipe = json.loads(cli("explain", spec, "-o", "json").stdout)
    assert recipe["quantities"]["examples"]["value"] == (900 * 9 // 10 - 1) // 8


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--model", "alexnett"], "--model: there is no 'alexnett'; did you mean alexnet"),
        (["--model", "none.yaml"], "none.yaml: cannot be read: No such file"),
        (["--model", "lenet5", "--image", "28"], "--image: '28' is not of the form CxHxW"),
        (["--model", "lenet5", "--image", "1x2x2"], "model lenet5 cannot work on images of 2x2 pixels"),
        (["--model", "lenet5", "--set", "seed=1"], "--set: there is no spec in which to set a field"),
        (["--model", "lenet5", "--image", "3x99999x99999"], "one image of 3x99999x99999 may take 12000 GB, and "),
        (["--model", "lenet5", "--threads", "2"], "--threads: does not go with --model; leave it out"),
        (["--classes", "2"], "--classes: only goes with --model; leave it out"),
        (["--batches", "1,0"], "--batches: '1,0' is no list of whole numbers above 0; write for instance 16,32,64"),
        (["--sizes", "a"], "--sizes: 'a' is no list"),
        (["--sizes", "9000000"], "--sizes: 9000000 takes 648000.1 GB, and cpu has "),
        (["--plot", "no/such/folder.png"], "--plot: there is no folder no/such"),
    ],
)
def test_bad_input_is_one_line_and_has_status_two(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = cli("profile", *arguments)
    assert outcome.exit_code == 2, outcome.output
    assert len(outcome.stderr.splitlines()) == 1
    assert outcome.stderr.startswith(line)
    assert outcome.stdout == ""
    assert not list(tmp_path.iterdir())


def test_layers_are_timed_told_and_drawn(cli: Cli, tmp_path: Path) -> None:
    fast = ("--batches", "1,2", "--sizes", "8, 16", "--repeats", "2", "--device", "cpu", "--threads", "1")
    outcome = cli("profile", *fast, "--plot", tmp_path / "a.png", "-o", "json")
    assert outcome.exit_code == 0, outcome.output
    timings = json.loads(outcome.stdout)
    assert timings["plan"]["repeats"] == 2
    assert [[each["size"] for each in curve["timings"]] for curve in timings["curves"]] == [[1, 2], [8, 16]]
    assert timings["plot"] == str(tmp_path / "a.png")
    told = cli("profile", *fast, "--plot", tmp_path / "b.png").stdout
    assert "mean and standard deviation of 2 forward passes; 1 thread on the CPU" in told
    assert "ms an image" in told
    assert f"The plot is in {tmp_path / 'b.png'}" in told
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_a_dry_run_checks_prints_and_starts_nothing(cli: Cli, tmp_path: Path) -> None:
    """No data, no cluster, no torch and no Ray."""
    spec = ROOT / "examples/mnist-sync.yaml"
    whole = json.loads(cli("run", spec, "--dry-run", "--set", "epochs=3").stdout)
    assert (whole["epochs"], whole["optimizer"]["name"], whole["batch"]["per_worker"]) == (3, "nesterov", 32)
    assert len(cli("run", spec, "--dry-run", "-o", "json").stdout.splitlines()) == 1
    vain = cli("run", spec, "--dry-run", "--set", "warmup.name=gradual", "--set", "scaling=none")
    assert (vain.exit_code, vain.stderr[:36]) == (0, "warning: warmup.name: gradual leads ")
    outcome = cli("run", spec, "--dry-run", "--set", "epochs=0")
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith(f"{spec}: /epochs: ")
    assert not list(tmp_path.iterdir())
    program = "import sys; from deploy.main import main\ntry: main()\n"
    program += "finally: print(*{'torch', 'ray'} & set(sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", program, "run", str(spec), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr.strip() == ""


def test_the_step_of_a_spec_is_timed_and_kept(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "job.json"
    path.write_text('{"model": "mlp", "data": "digits", "workers": 2, "batch": 16}')
    outcome = cli("profile", "--step", path)
    assert outcome.exit_code == 0, outcome.output
    told = [line.split()[0] for line in outcome.stdout.splitlines() if line.strip()]
    assert set(told) >= {"data", "forward", "backward", "update"}
    (kept,) = (tmp_path / ".cache/millrace/profiles").glob("*.json")
    assert json.loads(kept.read_text())["of"]["batch.per_worker"] == 16
    refused = cli("profile", "--step", path, "--model", "lenet5")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("--model: does not go with --step; leave it out")
