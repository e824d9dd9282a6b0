"""Every task with the algorithms that take it, against serial PyTorch written out."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import Run, WrittenLoss, run_all_reduce, run_through_shards, serial, step_batches
from tests.equivalence.local.local_sgd import averaged
from tests.equivalence.tasks.conftest import BOXES
from tests.equivalence.usertasks import KEPT, WEIGHTS, Pairs
from trainers.data.batches import Batch
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec
from trainers.training.setup import set_up

PLAIN = {"batch": 7, "epochs": 2, "seed": 3, "workers": {"count": 3, "virtual": 3}}
OPTIMIZER = {"name": "momentum", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
PLAIN_SGD = {"name": "sgd", "lr": 0.05}
BACKPROP = {"name": "downpour", "push": "layerwise", "backprop": {"groups": 2, "delay": 0}}
SHAPES = {"name": "tests.tasks.usersets:shapes_in_images"}
WEIGHED = {"name": "classification", "kwargs": {"class_weight": [1, 2]}}


def smooth_labels(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    logits = model(batch.images).log_softmax(1)
    wanted = 0.9 * F.one_hot(batch.labels, 10) + 0.1 / 10
    return -(wanted * logits).sum(), len(batch)


def weigh_labels(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    weight = torch.tensor(WEIGHTS)
    loss = F.cross_entropy(model(batch.images), batch.labels, weight, reduction="sum", label_smoothing=0.1)
    return loss, float(weight[batch.labels].sum())


def mix_labels(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    weight, shares = torch.tensor(WEIGHTS), batch.labels
    wanted = (0.9 * shares + 0.1 / 10) * weight
    return -(wanted * model(batch.images).log_softmax(1)).sum(), float((shares * weight).sum())


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


def boxes(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
    images, targets = batch.data
    losses = model(list(images), list(targets))
    of_proposals = losses["loss_objectness"] + losses["loss_rpn_box_reg"]
    return (of_proposals + losses["loss_classifier"] + losses["loss_box_reg"]) * len(images), len(images)


def of_means(written: WrittenLoss) -> WrittenLoss:
    """Of workers that step by the mean of their own minibatch and are averaged by their examples."""

    def means(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        total, weight = written(model, batch)
        return total / weight * len(batch), len(batch)

    return means


WRITTEN: dict[str, WrittenLoss] = {
    "smoothed classification": smooth_labels,
    "weighted classification": weigh_labels,
    "mixed images": mix_labels,
    "regression": squared_error,
    "language model": next_token,
    "masked language model": some_tokens,
    "contrastive": pairs,
    "segmentation": pixels,
    "detection": boxes,
    "transformers": hidden_tokens,
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
    whole = run_all_reduce(run_of(specs[name], optimizer=PLAIN_SGD, epochs=1)).params
    algorithm = {"name": "mixed", "group": 3, "max_staleness": 0}
    mixed = run_of(specs[name], optimizer=PLAIN_SGD, epochs=1, algorithm=algorithm, ps=1, workers=3)
    torch.testing.assert_close(run_through_shards(mixed).params, whole, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", list(WRITTEN))
def test_averaging_every_minibatch_is_serial_sgd_on_the_mean_of_means(name: str, specs: dict) -> None:
    """Which is `sync` where examples weigh the same."""
    run = run_of(specs[name], optimizer=PLAIN_SGD, algorithm="admm", epochs=1)
    expected = serial(run, step_batches(run), "sum", of_means(WRITTEN[name]))
    torch.testing.assert_close(run_all_reduce(run).params, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "detection"])
def test_parallel_sgd_is_local_sgd_written_out(name: str, specs: dict) -> None:
    """Examples that are no images stay where they are; which worker trains them is shuffled."""
    run = run_of(specs[name], optimizer=PLAIN_SGD, algorithm={"name": "parallel_sgd", "average_every": 2})
    expected = averaged(run, 2, WRITTEN[name])
    torch.testing.assert_close(run_all_reduce(run).params, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("contrastive", {"algorithm": BACKPROP, "workers": 1}, "trainers.Supervised"),
        ("language model", {"algorithm": "hybrid"}, "task: classification"),
        ("smoothed classification", {"algorithm": "hybrid"}, "label_smoothing"),
        ("weighted classification", {"algorithm": "hybrid"}, "class_weight"),
        ("segmentation", {"data": SHAPES | {"rand_augment": {}}}, "rand_augment: for images with labels"),
        ("detection", {"data": BOXES | {"random_erasing": {}}}, "random_erasing: for images with labels"),
        ("regression", {"task": WEIGHED, "loss": "logistic"}, "class_weight goes with loss: cross_entropy"),
        ("weighted classification", {"task": WEIGHED}, "class_weight has 2 numbers"),
        ("language model", {"model": "resnet18"}, "resnet18 reads images"),
        ("language model", {"data": "digits"}, "take data: text"),
        ("regression", {"data": "digits"}, "targets that are numbers"),
        ("regression", {"model": "resnet18"}, "reads images"),
        ("contrastive", {"model": {"name": "gpt"}}, "gpt reads tokens"),
        ("contrastive", {"model": "hf:bert"}, "goes with classification"),
        ("segmentation", {"algorithm": "hybrid"}, "task: classification"),
        ("detection", {"algorithm": "hybrid"}, "task: classification"),
        ("detection", {"algorithm": "parallel_sgd"}, "take sync, downpour, mixed or admm"),
        ("detection", {"algorithm": BACKPROP, "workers": 1}, "trainers.Supervised"),
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


@pytest.mark.parametrize(("name", "rest"), [("regression", ", and .* task.kwargs.loss"), ("contrastive", "")])
def test_a_loss_of_another_task_is_refused_as_the_spec_is_read(name: str, rest: str, specs: dict) -> None:
    with pytest.raises(ValidationError, match=rf"logistic is a loss of task: classification; leave it out{rest}"):
        TrainSpec.model_validate({**PLAIN, **specs[name], "loss": "logistic"})
