"""Mixup and CutMix against serial PyTorch that mixes by itself, and pays for both labels by their shares."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torchvision.transforms.v2 import CutMix

from tests.equivalence.harness import DIGITS, Run, WrittenLoss, run_all_reduce, run_through_shards, serial, step_batches
from trainers.data.batches import Batch
from trainers.data.draws import key
from trainers.data.images.mixing import STREAM
from trainers.spec import TrainSpec

OPTIMIZER = {"name": "momentum", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
WEIGHTS = [0.5, 1.0, 2.0, 1.0, 0.0, 3.0, 1.0, 1.0, 0.25, 1.0]
WEIGHED = {"name": "classification", "kwargs": {"label_smoothing": 0.1, "class_weight": WEIGHTS}}

CASES = {
    "mixup": ({"mixup": {"alpha": 0.4}}, {}),
    "cutmix": ({"cutmix": 1.0}, {}),
    "mixup, smoothed and weighted": ({"mixup": 0.4}, {"task": WEIGHED}),
    "cutmix, logistic": ({"cutmix": 1.0}, {"loss": "logistic"}),
}


def run_of(mixed: dict, count: int = 3, **more: object) -> Run:
    fields = {"workers": {"count": count, "virtual": 3}, "optimizer": OPTIMIZER, "epochs": 1, **more}
    return Run(TrainSpec.model_validate(DIGITS | fields | {"data": DIGITS["data"] | mixed}))


def mixed_by_hand(batch: Batch, mixed: dict) -> tuple[Tensor, float]:
    """The images of a minibatch that was not mixed, and the share of their own labels."""
    x, others = batch.images, batch.images.roll(1, 0)
    with torch.random.fork_rng():
        torch.manual_seed(key(key(DIGITS["seed"], batch.epoch, STREAM), int(batch.examples[0]), 0))
        if "cutmix" in mixed:
            found = CutMix(alpha=1.0, num_classes=10).make_params([x])
            left, top, right, bottom = found["box"]
            x = x.clone()
            x[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
            return x, found["lam_adjusted"]
        share = float(torch.distributions.Beta(torch.tensor([0.4]), torch.tensor([0.4])).sample())
    return share * x + (1 - share) * others, share


def by_hand(mixed: dict, more: dict) -> WrittenLoss:
    def written(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        images, share = mixed_by_hand(batch, mixed)
        logits = model(images)
        if "loss" in more:
            units = [F.one_hot(labels, 10).float() for labels in (batch.labels, batch.labels.roll(1))]
            own, other = (F.binary_cross_entropy_with_logits(logits, unit, reduction="sum") for unit in units)
            return share * own + (1 - share) * other, len(batch)
        weight = torch.tensor(WEIGHTS) if more else torch.ones(10)
        smoothing = 0.1 if more else 0.0
        loss, counted = torch.zeros(()), 0.0
        for part, labels in ((share, batch.labels), (1 - share, batch.labels.roll(1))):
            loss = loss + part * F.cross_entropy(logits, labels, weight, reduction="sum", label_smoothing=smoothing)
            counted += part * float(weight[labels].sum())
        return loss, counted

    return written


@pytest.mark.parametrize("name", CASES)
def test_sync_is_serial_mixing_and_itself_on_any_number_of_workers(name: str) -> None:
    mixed, more = CASES[name]
    first, *others = [run_all_reduce(run_of(mixed, count, **more)).params for count in (1, 2, 3)]
    assert all(torch.equal(first, other) for other in others)
    plain = run_of({}, **more)
    expected = serial(plain, step_batches(plain), "sum", by_hand(mixed, more))
    torch.testing.assert_close(first, expected, rtol=2e-4, atol=2e-6)
    unmixed = run_all_reduce(plain).params
    assert not torch.allclose(first, unmixed, rtol=0.1, atol=1e-2)


def chain(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))


def test_delayed_backpropagation_has_the_mixed_labels_of_its_minibatch() -> None:
    backprop = {"name": "downpour", "push": "layerwise", "backprop": {"groups": 2, "delay": 0}}
    whole, layerwise = (
        Run(run_of({"mixup": 0.4}, 1, workers=1, ps=1, algorithm=algorithm).spec, chain)
        for algorithm in ("downpour", backprop)
    )
    expected = run_through_shards(whole).params
    torch.testing.assert_close(run_through_shards(layerwise).params, expected, rtol=2e-4, atol=2e-6)
