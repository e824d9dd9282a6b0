"""Every task with the algorithms that take it, against serial PyTorch written out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import DIGITS, Run, WrittenLoss, run_all_reduce, run_through_shards, serial, step_batches
from tests.equivalence.usertasks import KEPT, Pairs
from trainers.data.batches import Batch
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec
from trainers.training.setup import set_up

PLAIN = {"batch": 7, "epochs": 2, "seed": 3, "workers": {"count": 3, "virtual": 3}}
OPTIMIZER = {"name": "momentum", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
BACKPROP = {"name": "downpour", "push": "layerwise", "backprop": {"groups": 2, "delay": 0}}
GPT = {"name": "gpt", "kwargs": {"layers": 2, "heads": 2, "width": 16}}
WEIGHTS = [0.001 * (i + 1) for i in range(10)]
WEIGHED = {"name": "classification", "kwargs": {"class_weight": [1, 2]}}
UNET = {"name": "unet", "kwargs": {"width": 4}}
HIDDEN = {"name": "transformers", "kwargs": {"head": "MaskedLM"}}
BERT = {
    "name": "hf:bert",
    "kwargs": {
        "vocab_size": 21, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
}  # fmt: skip


def smooth_labels(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    logits = model(batch.images).log_softmax(1)
    wanted = 0.9 * F.one_hot(batch.labels, 10) + 0.1 / 10
    return -(wanted * logits).sum(), len(batch)


def weigh_labels(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    weight = torch.tensor(WEIGHTS)
    loss = F.cross_entropy(model(batch.images), batch.labels, weight, reduction="sum", label_smoothing=0.1)
    return loss, float(weight[batch.labels].sum())


def squared_error(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    x, y = batch.data
    return ((model(x)[:, 0] - y) ** 2).sum(), len(batch)


def next_token(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    tokens, targets = batch.data
    logits = model(tokens).log_softmax(2)
    return -logits.gather(2, targets[..., None]).sum(), targets.numel()


def some_tokens(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    tokens, targets = batch.data
    costs = -model(tokens).log_softmax(2).gather(2, targets[..., None])[..., 0]
    counts = targets % KEPT == 0
    return costs[counts].sum(), int(counts.sum())


def pairs(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    loss = Pairs().loss(model, batch.data)
    return loss.total, loss.weight


def pixels(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    images, classes = batch.data
    costs = -model(images / 255).log_softmax(1)
    counts = classes != 255
    wanted = classes.long().where(counts, torch.zeros((), dtype=torch.int64))
    return costs.gather(1, wanted[:, None])[:, 0][counts].sum(), int(counts.sum())


def hidden_tokens(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    tokens, labels = batch.data["input_ids"], batch.data["labels"]
    costs = -model(tokens).logits.log_softmax(2)
    counts = labels != -100
    return costs.gather(2, labels.clamp(min=0)[..., None])[..., 0][counts].sum(), int(counts.sum())


WRITTEN: dict[str, WrittenLoss] = {
    "smoothed classification": smooth_labels,
    "weighted classification": weigh_labels,
    "regression": squared_error,
    "language model": next_token,
    "masked language model": some_tokens,
    "contrastive": pairs,
    "segmentation": pixels,
    "transformers": hidden_tokens,
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """2,000 letters of which a letter says much about the next one."""
    draw = np.random.default_rng(0)
    letters = (np.cumsum(draw.integers(0, 3, 2000)) % 26 + 97).astype(np.uint8)
    (tmp_path / "letters.txt").write_bytes(letters.tobytes())
    return tmp_path / "letters.txt"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    draw = np.random.default_rng(1)
    x, kind = draw.normal(size=(120, 3)), draw.integers(0, 2, 120)
    y = x @ [1.0, -2.0, 0.5] + kind + 0.1 * draw.normal(size=120)
    rows = [
        f"{a:.4f},{b:.4f},{c:.4f},{'red' if k else 'blue'},{t:.4f}" for (a, b, c), k, t in zip(x, kind, y, strict=True)
    ]
    (tmp_path / "table.csv").write_text("a,b,c,colour,y\n" + "\n".join(rows) + "\n")
    return tmp_path / "table.csv"


@pytest.fixture
def specs(text: Path, table: Path) -> dict[str, dict[str, object]]:
    weighed = {"label_smoothing": 0.1, "class_weight": WEIGHTS}
    words = {"name": "text", "root": str(text), "context": 12, "validation": 0.2}
    return {
        "smoothed classification": {"task": {"name": "classification", "kwargs": {"label_smoothing": 0.1}}, **DIGITS},
        "weighted classification": {"task": {"name": "classification", "kwargs": weighed}, **DIGITS},
        "regression": {"task": "regression", "data": {"name": "csv", "root": str(table), "target": "y"}},
        "language model": {"task": "language_model", "model": GPT, "data": words},
        "masked language model": {"task": "tests.equivalence.usertasks:Masked", "model": GPT, "data": words},
        "contrastive": {"task": "tests.equivalence.usertasks:Pairs", "data": DIGITS["data"]},
        "segmentation": {"task": "segmentation", "model": UNET, "data": "tests.tasks.usersets:shapes_in_images"},
        "transformers": {"task": HIDDEN, "model": BERT, "data": "tests.tasks.usersets:sentences"},
    }


def run_of(fields: dict[str, object], **changes: object) -> Run:
    return Run(TrainSpec.model_validate({"optimizer": OPTIMIZER, **PLAIN, **fields, **changes}))


@pytest.mark.parametrize("name", list(WRITTEN))
def test_sync_equals_serial_and_itself_on_any_number_of_workers(name: str, specs: dict) -> None:
    runs = [run_of(specs[name], workers={"count": count, "virtual": 3}) for count in (1, 2, 3)]
    first, *others = [run_all_reduce(run).params for run in runs]
    for other in others:
        assert torch.equal(first, other)
    expected = serial(runs[0], step_batches(runs[0]), "sum", WRITTEN[name])
    torch.testing.assert_close(first, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", list(WRITTEN))
def test_shards_and_buckets_divide_by_the_same_weight(name: str, specs: dict) -> None:
    whole = run_all_reduce(run_of(specs[name])).params
    sharded = run_of(specs[name], algorithm={"name": "sync", "form": "parameter_server"}, ps=1)
    assert torch.equal(run_through_shards(sharded).params, whole)
    fast = run_of(specs[name], algorithm={"name": "sync", "reduction": "fast", "bucket_bytes": 2000})
    torch.testing.assert_close(run_all_reduce(fast).params, whole, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", list(WRITTEN))
def test_downpour_of_one_worker_is_serial_sgd(name: str, specs: dict) -> None:
    run = run_of(specs[name], algorithm="downpour", workers=1, ps=1)
    each = ([batch] for step in step_batches(run) for batch in step)
    expected = serial(run, each, "mean", WRITTEN[name])
    torch.testing.assert_close(run_through_shards(run).params, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", list(WRITTEN))
def test_one_group_of_mixed_is_sync(name: str, specs: dict) -> None:
    plain = {"name": "sgd", "lr": 0.05}
    whole = run_all_reduce(run_of(specs[name], optimizer=plain, epochs=1)).params
    algorithm = {"name": "mixed", "group": 3, "max_staleness": 0}
    mixed = run_of(specs[name], optimizer=plain, epochs=1, algorithm=algorithm, ps=1, workers=3)
    torch.testing.assert_close(run_through_shards(mixed).params, whole, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", ["smoothed classification", "regression", "language model"])
def test_averaging_every_minibatch_is_sync_where_examples_weigh_the_same(name: str, specs: dict) -> None:
    plain = {"name": "sgd", "lr": 0.05}
    whole = run_all_reduce(run_of(specs[name], optimizer=plain)).params
    averaged = run_of(specs[name], optimizer=plain, algorithm="admm")
    torch.testing.assert_close(run_all_reduce(averaged).params, whole, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", ["weighted classification", "regression", "language model", "masked language model"])
def test_parallel_sgd_has_the_same_bits_on_any_number_of_workers(name: str, specs: dict) -> None:
    """Examples that are no images stay where they are; which worker trains them is shuffled."""
    algorithm = {"name": "parallel_sgd", "average_every": 2}
    one, three = (
        run_all_reduce(run_of(specs[name], algorithm=algorithm, workers={"count": count, "virtual": 3}))
        for count in (1, 3)
    )
    assert torch.equal(one.params, three.params)
    together = run_all_reduce(run_of(specs[name])).params
    assert not torch.equal(one.params, together)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("contrastive", {"algorithm": BACKPROP, "workers": 1}, "trainers.Supervised"),
        ("language model", {"algorithm": "hybrid"}, "task: classification"),
        ("smoothed classification", {"algorithm": "hybrid"}, "label_smoothing"),
        ("weighted classification", {"algorithm": "hybrid"}, "class_weight"),
        ("regression", {"task": WEIGHED, "loss": "logistic"}, "class_weight goes with loss: cross_entropy"),
        ("weighted classification", {"task": WEIGHED}, "class_weight has 2 numbers"),
        ("language model", {"model": "resnet18"}, "resnet18 reads images"),
        ("language model", {"data": "digits"}, "take data: text"),
        ("regression", {"data": "digits"}, "targets that are numbers"),
        ("regression", {"model": "resnet18"}, "reads images"),
        ("contrastive", {"model": {"name": "gpt"}}, "gpt reads tokens"),
        ("contrastive", {"model": "hf:bert"}, "goes with classification"),
        ("segmentation", {"algorithm": "hybrid"}, "task: classification"),
        ("segmentation", {"model": "resnet18"}, "take unet"),
        ("segmentation", {"data": "digits"}, "a class for each pixel"),
        ("segmentation", {"model": {"name": "unet", "kwargs": {"wide": 3}}}, "takes width"),
        ("smoothed classification", {"model": "unet"}, "set task: segmentation"),
        ("transformers", {"model": "lenet5"}, "set model: hf:<type>"),
        ("transformers", {"model": "hf:gtp2"}, "did you mean .*gpt2"),
        ("transformers", {"model": "hf:./nowhere"}, "downloads none"),
        ("transformers", {"model": {"name": "hf:bert", "kwargs": {"hidden": 3}}}, "did you mean hidden"),
        ("transformers", {"task": {"name": "transformers", "kwargs": {"head": "MaskLM"}}}, "did you mean MaskedLM"),
        ("transformers", {"task": "transformers"}, "names no class"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(name: str, changes: dict, why: str, specs: dict) -> None:
    spec = TrainSpec.model_validate({**PLAIN, **specs[name], **changes})
    with pytest.raises(SpecRejected, match=why):
        set_up(spec, None)
