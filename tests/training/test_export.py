"""A finished model in other formats: each loaded again and compared; what is not the same is not left behind."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typer.testing import CliRunner

from api import build
from tests.api.cli.fake_cli import cli_context
from tests.service.fakes import FakeRuns
from trainers.algorithms.hybrid.connect import ConnectSpec
from trainers.data.facts import DataFacts
from trainers.errors import ExportFailed, SpecRejected
from trainers.models.registry import build_model, build_model_for
from trainers.models.weights import save_weights
from trainers.optim.ema import RAW
from trainers.spec import ModelSpec
from trainers.tasks.config import TaskSpec
from trainers.tasks.registry import build_task, build_task_model
from trainers.training import export
from trainers.training.export import FINISHED, HEADER, SUFFIX, TOLERANCE, FinishedModel, export_model

USER_MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.BatchNorm1d(classes))

    def forward(self, x):
        return self.net(x) {change}

def net(num_classes, in_channels):
    return Net(num_classes)
"""

BRINGS = """
from torch import nn
from trainers import Task

class Brings(Task):
    def model(self, facts):
        return nn.Linear(facts.inputs[0], facts.outputs)

    def loss(self, model, data):
        raise NotImplementedError
"""


def left_by_a_run(
    folder: Path,
    name: str,
    shape: tuple[int, ...],
    code: str | None = None,
    categories: tuple[int, ...] = (),
    connect: ConnectSpec | None = None,
) -> Path:
    """A run directory with what the evaluator writes at the end, of a model whose statistics have moved."""
    folder.mkdir(exist_ok=True)
    finished = FinishedModel(
        model=ModelSpec(name=name), num_classes=10, image_shape=shape, code=code, categories=categories, connect=connect
    )
    with export.user_code.on_path(code):
        module = build_model(finished.model, 10, shape, 3, categories)
    if connect is not None:
        connect.replace_layers(module, as_built=True)
    with torch.no_grad():
        for _ in range(3 if not categories else 0):
            module(torch.randn(8, *shape, generator=torch.Generator().manual_seed(1)) + 1)
    save_weights(folder / FINISHED, module, {HEADER: finished.model_dump_json()})
    return folder


FORMATS = [form for form in SUFFIX if form != "huggingface"]
"""Those of any model."""


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("name", "shape"),
    [("mlp", (1, 8, 8)), pytest.param("convnet", (1, 28, 28), marks=pytest.mark.slow),
     pytest.param("resnet18", (3, 64, 64), marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # of torch's and onnx's own
def test_each_format_gives_the_same_logits(tmp_path: Path, form: Any, name: str, shape: tuple[int, int, int]) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    told = export_model(left_by_a_run(tmp_path / "run", name, shape), form)
    assert told.max_difference < TOLERANCE == 1e-5
    written = Path(told.path)
    files = [written] if written.is_file() else list(written.iterdir())
    assert told.bytes == sum(file.stat().st_size for file in files) > 1000
    assert (told.image_shape, told.num_classes) == (shape, 10)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {FINISHED, f"model{SUFFIX[form]}"}


@pytest.mark.parametrize("form", ["torch.export", "onnx"])
@pytest.mark.filterwarnings("ignore")
def test_projected_layers_are_written_with_the_computation(tmp_path: Path, form: Any) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    run = left_by_a_run(tmp_path / "run", "lenet5", (1, 28, 28), connect=ConnectSpec(blocks=4, rank=3))
    assert export_model(run, form).max_difference < TOLERANCE


@pytest.mark.filterwarnings("ignore")
def test_codes_of_categories_stay_codes(tmp_path: Path) -> None:
    told = export_model(left_by_a_run(tmp_path / "run", "tabular", (5,), categories=(3, 40)), "torch.export")
    assert told.image_shape == (5,)


def test_a_program_needs_neither_millrace_nor_the_users_code(tmp_path: Path) -> None:
    """And takes minibatches of any size; the formats are held to the finished model by somebody else's hands."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "mynet_for_export.py").write_text(USER_MODEL.format(change=""))
    run = left_by_a_run(tmp_path / "run", "mynet_for_export:net", (1, 8, 8), str(code))
    export_model(run, "torch.export", tmp_path / "net.pt2")
    shutil.rmtree(code)
    images = torch.randn(7, 1, 8, 8)
    found: Tensor = torch.export.load(tmp_path / "net.pt2").module()(images)
    weights = load_file(run / FINISHED)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)).eval()
    plain.load_state_dict({name.removeprefix("net."): value for name, value in weights.items()})
    assert float((found - plain(images)).detach().abs().max()) < TOLERANCE


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_the_same_is_refused_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = left_by_a_run(tmp_path / "run", "mlp", (1, 8, 8))
    whole = export._load_program
    off = lambda finished, path: lambda images: whole(finished, path)(images) + 2e-5  # noqa: E731
    monkeypatch.setitem(export._LOAD, "torch.export", off)
    with pytest.raises(ExportFailed, match="differ by 2"):
        export_model(run, "torch.export")
    assert [path.name for path in run.iterdir()] == [FINISHED]


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "unexportable.py").write_text(USER_MODEL.format(change="* (1 if float(x.sum()) > 0 else 2)"))
    run = left_by_a_run(tmp_path / "run", "unexportable:net", (1, 8, 8), str(tmp_path))
    with pytest.raises(ExportFailed, match=r"torch cannot write this model as torch\.export: \w+"):
        export_model(run, "torch.export")
    assert [path.name for path in run.iterdir()] == [FINISHED]


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecRejected, match="no finished model"):
        export_model(tmp_path, "onnx")
    save_file({"a": torch.zeros(1)}, tmp_path / FINISHED)
    with pytest.raises(SpecRejected, match="does not say which model"):
        export_model(tmp_path, "onnx")
    (tmp_path / FINISHED).write_bytes(b"no safetensors")
    with pytest.raises(SpecRejected, match="is not the finished model"):
        export_model(tmp_path, "onnx")


def test_the_header_does_not_change_from_one_writing_to_the_next(tmp_path: Path) -> None:
    """Else two runs with equal bits would leave files that differ."""
    files = {(left_by_a_run(tmp_path / str(i), "mlp", (1, 8, 8)) / FINISHED).read_bytes() for i in range(5)}
    assert len(files) == 1


def test_the_command(tmp_path: Path) -> None:
    run = left_by_a_run(tmp_path / "run", "mlp", (1, 8, 8))
    app = build(cli_context(FakeRuns(), tmp_path))
    told = CliRunner().invoke(
        app, ["export", str(run), "--format", "safetensors", "--to", str(tmp_path / "m.st"), "-o", "json"]
    )
    assert told.exit_code == 0, told.output
    assert json.loads(told.output)["path"] == str(tmp_path / "m.st")
    assert (tmp_path / "m.st").read_bytes() == (run / FINISHED).read_bytes()
    facts = DataFacts((1, 8, 8), classes=10, mean=(0.25,), std=(0.5,))
    says = FinishedModel(model=ModelSpec(name="mlp"), num_classes=10, image_shape=(1, 8, 8), facts=facts)
    save_file(load_file(run / FINISHED), run / FINISHED, {HEADER: says.model_dump_json()})
    told = CliRunner().invoke(app, ["export", str(run), "--to", str(tmp_path / "m.pt")])
    assert "Images: scaled to 0..1, less 0.25, divided by 0.5, channel by channel" in told.stdout
    told = CliRunner().invoke(app, ["export", str(run), "--format", "safetensors", "--raw"])
    assert told.exit_code == 2
    assert "only a run with ema leaves it" in " ".join(told.output.split())
    (run / RAW).write_bytes((run / FINISHED).read_bytes())
    told = CliRunner().invoke(app, ["export", str(run), "--format", "torch.export", "--raw", "-o", "json"])
    assert json.loads(told.output)["path"] == str(run / "raw.pt2")
    missing = CliRunner().invoke(app, ["export", str(tmp_path / "elsewhere"), "--format", "onnx"])
    assert missing.exit_code == 2
    nowhere = CliRunner().invoke(app, ["export", str(run), "--format", "onnx", "--to", str(tmp_path / "no" / "x")])
    assert (nowhere.exit_code, "there is no folder" in nowhere.output) == (2, True)


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.bin", "net.ckpt", "net.dcp", "net.safetensors"])
def test_weights_go_out_and_in_again_with_the_same_bits(tmp_path: Path, name: str) -> None:
    """The ending says the format."""
    run, written = left_by_a_run(tmp_path / "run", "convnet", (1, 28, 28)), tmp_path / name
    assert export_model(run, target=written).path == str(written)
    model = ModelSpec(name="convnet", weights=str(written), strict=True)
    found, ours = build_model(model, 10, (1, 28, 28), seed=9).state_dict(), load_file(run / FINISHED)
    assert found.keys() == ours.keys()
    assert all(torch.equal(found[key], ours[key]) for key in ours)


def test_what_is_written_differently_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = left_by_a_run(tmp_path / "run", "mlp", (1, 8, 8))
    write = export.write_saved
    less = lambda tensors, path: write(dict(list(tensors.items())[1:]), path)  # noqa: E731
    monkeypatch.setattr(export, "write_saved", less)
    with pytest.raises(ExportFailed, match=r"as torch\.save the tensor .* is not the same"):
        export_model(run, "torch.save")
    assert [path.name for path in run.iterdir()] == [FINISHED]


@pytest.mark.parametrize(
    ("form", "target", "why"),
    [(None, "net.xyz", "ends as one does: .safetensors, .pt, "), (None, None, "name a format"),
     ("torch.save", "net.zip", "must end in .pt, "), ("torch.distributed.checkpoint", ".", "a folder .* already"),
     ("huggingface", "net.hf", "only a model of transformers")],
)  # fmt: skip
def test_a_target_that_will_not_do(tmp_path: Path, form: Any, target: str | None, why: str) -> None:
    run = left_by_a_run(tmp_path / "run", "mlp", (1, 8, 8))
    with pytest.raises((SpecRejected, ExportFailed), match=why):
        export_model(run, form, None if target is None else tmp_path / target)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_transformers_loads(tmp_path: Path) -> None:
    """Its output layer shares the weights of its embedding, which lie in the folder once."""
    transformers = pytest.importorskip("transformers")
    kwargs = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 12}
    model = ModelSpec(name="hf:gpt2", kwargs=kwargs)
    facts, task = DataFacts((12,), vocabulary=30, unit="byte"), TaskSpec(name="language_model")
    module = build_task_model(build_task(task, "cross_entropy", facts), model, seed=3)
    finished = FinishedModel(model=model, num_classes=30, image_shape=(12,), task=task, facts=facts)
    save_weights(tmp_path / FINISHED, module, {HEADER: finished.model_dump_json()})
    folder = Path(export_model(tmp_path, "huggingface").path)
    assert folder.name == "model.hf"
    tokens = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(1))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert theirs.config.use_cache
    with torch.no_grad():
        assert torch.equal(theirs(tokens).logits, module.eval()(tokens))
    again = ModelSpec(name=f"hf:{folder}", weights=str(folder), strict=True)
    found = build_task_model(build_task(task, "cross_entropy", facts), again, seed=4).state_dict()
    assert all(torch.equal(found[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.filterwarnings("ignore")  # of torch's and onnx's own
def test_a_model_of_tokens(form: Any, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    model = ModelSpec.model_validate({"name": "gpt", "kwargs": {"layers": 1, "heads": 2, "width": 16}})
    facts = DataFacts((12,), vocabulary=30, unit="byte")
    finished = FinishedModel(
        model=model, num_classes=30, image_shape=(12,), task=TaskSpec(name="language_model"), facts=facts
    )
    save_weights(tmp_path / FINISHED, build_model_for(model, facts, seed=3), {HEADER: finished.model_dump_json()})
    target = tmp_path / f"other{SUFFIX[form]}"
    exported = export_model(tmp_path, form, target)
    assert exported.max_difference < TOLERANCE
    if form == "torch.export":
        tokens = torch.randint(30, (4, 12))
        assert torch.export.load(target).module()(tokens).shape == (4, 12, 30)


def test_the_model_that_a_task_brings(tmp_path: Path) -> None:
    (tmp_path / "brings.py").write_text(BRINGS)
    facts, task = DataFacts((3,), outputs=1), TaskSpec(name="brings:Brings")
    finished = FinishedModel(
        model=ModelSpec(name="task"), num_classes=1, image_shape=(3,), task=task, facts=facts, code=str(tmp_path)
    )
    save_weights(tmp_path / FINISHED, nn.Linear(3, 1), {HEADER: finished.model_dump_json()})
    assert export_model(tmp_path, "torch.export", tmp_path / "other.pt2").max_difference == 0
    given = finished.model_copy(update={"task": TaskSpec(name="given_to_train:Brings")})
    save_weights(tmp_path / FINISHED, nn.Linear(3, 1), {HEADER: given.model_dump_json()})
    with pytest.raises(SpecRejected, match=r"was an object that train\(\) was given"):
        export_model(tmp_path, "torch.export", tmp_path / "other.pt2")
