"""A finished model in a format for others: written, loaded again as they would, and compared: weights bit for bit, a
computation on inputs drawn at random.

`model.safetensors` says in its header which model it is of, so that the file alone is enough.
"""

import contextlib
import importlib.util
import io
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from trainers import user_code
from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.hybrid.connect import ConnectSpec
from trainers.data.facts import DataFacts
from trainers.errors import ExportFailed, SpecRejected
from trainers.models.names import is_hugging_face
from trainers.models.registry import build_model_for
from trainers.models.weight_files import SAVED, Tensors, load_weights, read_weights
from trainers.models.weight_writing import differing, write_distributed, write_saved
from trainers.optim.ema import RAW
from trainers.spec import ModelSpec, TrainSpec
from trainers.tasks.config import TaskSpec
from trainers.tasks.registry import OWN, build_task, build_task_model

Format = Literal["safetensors", "torch.save", "torch.distributed.checkpoint", "huggingface", "torch.export", "onnx"]
SUFFIX: dict[Format, str] = {
    "safetensors": ".safetensors", "torch.save": ".pt", "torch.distributed.checkpoint": ".dcp", "huggingface": ".hf",
    "torch.export": ".pt2", "onnx": ".onnx",
}  # fmt: skip
"""Of the file, or of the folder where a format is one."""
FINISHED = "model.safetensors"
HEADER = "millrace"
"""The one key of the header: of several, safetensors would write them in any order, and the bits would differ."""

TOLERANCE = 1e-5
"""The largest difference of a logit. A tenth of it is what other kernels cost in float32 on logits near 10."""

_KINDS = {
    "segmentation": "a model of pixels",
    "detection": "a detector",
    "transformers": "a model of transformers",
}
"""Tasks whose models do not give one tensor for inputs of one kind."""

SIZES = (2, 1, 5)
"""Inputs at once: the first is what the model is exported with; it must take others as well."""


class FinishedModel(BaseModel):
    """What the header of `model.safetensors` says."""

    model_config = ConfigDict(frozen=True)

    model: ModelSpec
    num_classes: int
    """Labels, or numbers that the model gives; the vocabulary of a language model."""
    image_shape: tuple[int, ...]
    """(C, H, W) of an image, (F,) of a vector, (T,) of tokens."""
    categories: tuple[int, ...] = ()
    """How many codes each of a vector's last numbers may hold, where they stand for categories."""
    task: TaskSpec = TaskSpec()
    facts: DataFacts | None = None
    """What its data looked like; null in files that are older than this."""
    code: str | None = None
    """The folder of a user's own model."""
    connect: ConnectSpec | None = None
    """Where the algorithm trained other layers in the place of the model's."""

    @property
    def data(self) -> DataFacts:
        """What its data looked like."""
        if self.facts is not None:
            return self.facts
        if self.task.name == "language_model":
            return DataFacts(self.image_shape, vocabulary=self.num_classes)
        return DataFacts(self.image_shape, classes=self.num_classes, categories=self.categories)


def finished_model(spec: TrainSpec, facts: DataFacts) -> FinishedModel:
    """What a run's finished model says of itself."""
    outputs = facts.pixel_classes or facts.classes or facts.outputs or facts.vocabulary
    connect = spec.algorithm.connect if isinstance(spec.algorithm, HybridConfig) else None
    return FinishedModel(
        model=spec.model, num_classes=outputs, image_shape=facts.inputs, categories=facts.categories, task=spec.task,
        facts=facts, code=spec.code, connect=connect,
    )  # fmt: skip


class Exported(BaseModel):
    """What was written."""

    path: str
    format: Format
    bytes: int
    image_shape: tuple[int, ...]
    num_classes: int
    max_difference: float
    """Of the logits, between the finished model and what was written, loaded again."""
    mean: tuple[float, ...] = ()
    """Of images scaled to 0..1: what is taken from each channel before the model sees them, (C,)."""
    std: tuple[float, ...] = ()
    """By what each is divided then, (C,)."""


def export_model(source: Path, form: Format | None = None, target: Path | None = None, raw: bool = False) -> Exported:
    """Write a finished model in another format.

    Args:
        source: A run directory, or its `model.safetensors`.
        form: `torch.export` and `onnx` hold the computation too, for minibatches of any size: (B, C, H, W) float32,
            normalised as in training, to logits (B, classes). The others hold the weights, as `model.weights` takes
            them; `huggingface` with the configuration, for `from_pretrained`. None: as the ending of `target` says.
        target: Where to; by default `model` with the format's suffix beside the finished model.
        raw: Of a run directory whose model is an average, the parameters as they are, as `raw` with the suffix.

    Raises:
        SpecRejected: There is no finished model, its code is not there, or `target` does not do.
        ExportFailed: The model cannot be written so, or gives other logits than it should.
    """
    if raw and not (source / RAW).is_file():
        raise SpecRejected(f"there is no {RAW} in {source}; only a run with ema leaves it, whose model is an average")
    source = source / (RAW if raw else FINISHED) if source.is_dir() else source
    form = form or _format_of(target)
    target = _free(target or source.with_suffix(SUFFIX[form]), form)
    finished = described(source)
    part = target.with_name(f".part-{target.name}")
    _remove(part)
    with user_code.on_path(None if form in _WEIGHTS else finished.code):  # weights need no code of the user's
        try:
            difference = _written(form, finished, source, part)
        except BaseException:
            _remove(part)
            raise
    part.replace(target)
    shape, classes = finished.image_shape, finished.num_classes
    return Exported(
        path=str(target), format=form, bytes=_size(target), image_shape=shape, num_classes=classes,
        max_difference=difference, mean=finished.data.mean, std=finished.data.std,
    )  # fmt: skip


def _format_of(target: Path | None) -> Format:
    """The one whose ending a file or folder has."""
    endings = {suffix: form for form, suffix in SUFFIX.items()} | dict.fromkeys(SAVED, "torch.save")
    if target is None or target.suffix not in endings:
        raise SpecRejected(f"name a format, or a file or folder that ends as one does: {', '.join(endings)}")
    return endings[target.suffix]


def _free(target: Path, form: Format) -> Path:
    """Raises SpecRejected where a folder would be written over, or `model.weights` would take a file for another."""
    if target.is_dir():
        raise SpecRejected(f"there is a folder {target} already; remove it, or name another one")
    if form == "torch.save" and target.suffix not in SAVED:
        raise SpecRejected(
            f"{target} must end in {', '.join(SAVED)}, by which model.weights knows a file of torch.save"
        )
    return target


def _written(form: Format, finished: FinishedModel, source: Path, part: Path) -> float:
    """Write it, load it again, and compare. Returns the largest difference of a logit.

    Raises ExportFailed: It cannot be written so, or is not the same.
    """
    if form in _WEIGHTS:
        ours = load_weights(source)
        if name := differing(ours, _WEIGHTS[form](finished, source, part)):
            raise ExportFailed(f"as {form} the tensor {name} is not the same; use another format")
        return 0.0
    module = _module(finished, source)
    _WRITE[form](module, finished, part)
    difference = _difference(module, finished, _LOAD[form](finished, part))
    if difference >= TOLERANCE:
        raise ExportFailed(f"as {form} the model's logits differ by {difference:g}; use another format")
    return difference


def _size(path: Path) -> int:
    """Bytes of a file, or of all in a folder."""
    return sum(one.stat().st_size for one in ([path] if path.is_file() else path.rglob("*")) if one.is_file())


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def described(path: Path) -> FinishedModel:
    """What a file says of itself. Raises SpecRejected."""
    if not path.is_file():
        raise SpecRejected(f"there is no finished model at {path}; a run leaves one when it ends or is stopped cleanly")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(HEADER)
        if header is None:
            raise SpecRejected(f"{path} does not say which model it is of; give the {FINISHED} of a run")
        return FinishedModel.model_validate_json(header)
    except (SafetensorError, ValidationError) as error:
        raise SpecRejected(f"{path} is not the finished model of a run: {error}") from error


def _module(finished: FinishedModel, weights: Path) -> nn.Module:
    """The finished model, ready to be asked."""
    name = finished.model.name
    if kind := _KINDS.get(finished.task.name, "a model of transformers" if is_hugging_face(name) else ""):
        raise ExportFailed(f"{kind} is not written in this format yet; take one of the weights alone, as torch.save")
    module: nn.Module = _built(finished, of_task=name == OWN)
    if finished.connect is not None:
        finished.connect.replace_layers(module, as_built=False)
    module.load_state_dict(load_weights(weights))
    return module.eval()


def _built(finished: FinishedModel, of_task: bool) -> Any:
    """The model with weights of any kind."""
    spec = finished.model.model_copy(update={"weights": None, "key_mapping": {}, "strict": False})
    if of_task:
        return build_task_model(build_task(finished.task, "cross_entropy", finished.data), spec, seed=0)
    return build_model_for(spec, finished.data, seed=0)


def _inputs(finished: FinishedModel, count: int) -> Tensor:
    """(count, C, H, W), like normalised images; (count, F), the last of which may be codes; or (count, T) tokens."""
    facts, draw = finished.data, torch.Generator().manual_seed(count)
    if facts.vocabulary:
        return torch.randint(facts.vocabulary, (count, *facts.inputs), generator=draw)
    found = torch.randn(count, *facts.inputs, generator=draw)
    for place, size in enumerate(reversed(facts.categories), 1):
        found[:, -place] = torch.randint(size, (count,), generator=draw)
    return found


def _difference(module: nn.Module, finished: FinishedModel, loaded: Callable[[Tensor], Tensor]) -> float:
    """The largest, over minibatches of several sizes; infinite where the shapes differ or something is not finite."""
    found = 0.0
    for count in SIZES:
        inputs = _inputs(finished, count)
        try:
            with torch.no_grad():
                ours = module(inputs)
        except Exception as error:  # a task's own model may take something else
            raise user_code.failed("the model, called with inputs like the data's first column,", error) from error
        if not isinstance(ours, Tensor):
            raise ExportFailed(f"the model gives a {type(ours).__name__}, and only one tensor can be compared again")
        theirs = loaded(inputs)
        if ours.shape != theirs.shape or not bool(torch.isfinite(ours - theirs).all()):
            return float("inf")
        found = max(found, float((ours - theirs).abs().max()))
    return found


# -- one a format of weights: write, and load again -------------------------------------------------------------------


def _copied(_finished: FinishedModel, source: Path, path: Path) -> Tensors:
    shutil.copyfile(source, path)
    return load_weights(path)


def _saved(_finished: FinishedModel, source: Path, path: Path) -> Tensors:
    write_saved(load_weights(source), path)
    return read_weights(path)


def _distributed(_finished: FinishedModel, source: Path, folder: Path) -> Tensors:
    write_distributed(load_weights(source), folder)
    return read_weights(folder)


def _pretrained(finished: FinishedModel, source: Path, folder: Path) -> Tensors:
    """Tensors that are tied lie once in the folder, so its own library says what it holds."""
    if not is_hugging_face(finished.model.name):
        raise ExportFailed("only a model of transformers (model: hf:...) has a configuration to go into such a folder")
    module = _built(finished, of_task=True)
    module.load_state_dict(load_weights(source))
    if hasattr(module.config, "use_cache"):  # training has none
        module.config.use_cache = finished.model.kwargs.get("use_cache", True)
    module.save_pretrained(folder)
    loaded: Tensors = type(module).from_pretrained(folder, local_files_only=True).state_dict()
    return loaded


_WEIGHTS: dict[Format, Callable[[FinishedModel, Path, Path], Tensors]] = {
    "safetensors": _copied, "torch.save": _saved, "torch.distributed.checkpoint": _distributed,
    "huggingface": _pretrained,
}  # fmt: skip


# -- one pair a format of computations: write, and load as somebody else would ----------------------------------------


def _write_program(module: nn.Module, finished: FinishedModel, path: Path) -> None:
    with _exporting("torch.export"):
        program = torch.export.export(module, (_inputs(finished, SIZES[0]),), dynamic_shapes=_any_batch())
        buffer = io.BytesIO()  # it insists on its own suffix
        torch.export.save(program, buffer)
    path.write_bytes(buffer.getvalue())


def _load_program(_finished: FinishedModel, path: Path) -> Callable[[Tensor], Tensor]:
    return _asked(torch.export.load(io.BytesIO(path.read_bytes())).module())


def _write_onnx(module: nn.Module, finished: FinishedModel, path: Path) -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportFailed(f"{' and '.join(missing)} is not installed: pip install 'millrace[onnx]'")
    with _exporting("onnx"):
        torch.onnx.export(
            module, (_inputs(finished, SIZES[0]),), path, dynamo=True, dynamic_shapes=_any_batch(), verbose=False,
            external_data=False, input_names=[_name(finished)], output_names=["logits"],
        )  # fmt: skip


def _load_onnx(finished: FinishedModel, path: Path) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def logits(inputs: Tensor) -> Tensor:
        (found,) = session.run(["logits"], {_name(finished): inputs.numpy()})
        return torch.from_numpy(found)

    return logits


def _name(finished: FinishedModel) -> str:
    """Of the inputs in an ONNX file."""
    return "tokens" if finished.data.vocabulary else "images" if len(finished.data.inputs) == 3 else "inputs"


_WRITE: dict[Format, Callable[[nn.Module, FinishedModel, Path], None]] = {
    "torch.export": _write_program, "onnx": _write_onnx,
}  # fmt: skip
_LOAD: dict[Format, Callable[[FinishedModel, Path], Callable[[Tensor], Tensor]]] = {
    "torch.export": _load_program, "onnx": _load_onnx,
}  # fmt: skip


def _asked(module: nn.Module) -> Callable[[Tensor], Tensor]:
    def logits(images: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = module(images)
        return found

    return logits


def _any_batch() -> "tuple[dict[int, torch.export.Dim]]":
    return ({0: torch.export.Dim("batch", min=1)},)


@contextlib.contextmanager
def _exporting(form: Format) -> Iterator[None]:
    """What torch warns of is its own; what it raises is told as the model's fault."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportFailed(f"torch cannot write this model as {form}: {told[0]}") from error
