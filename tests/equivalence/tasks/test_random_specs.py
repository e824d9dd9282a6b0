"""Whatever a spec combines, it is refused, or trains each example once, to the same bits each time.

What breaks breaks where two options meet. Here they meet by chance: a seed draws one spec after the other, until one is
accepted.
"""

import gc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor

from tests.local_runs import LocalRun
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec
from trainers.training.setup import check, set_up

DRAWS = 200
"""Of which one is accepted, or nearly everything would be refused."""
STEPS = 1
"""Of a run that is resumed: the shortest has two."""
OPTIMIZERS = (
    "sgd", "momentum", "nesterov", "rmsprop", "adagrad", "adam", "adamw", "lion", "lars", "lamb", "muon",
    "torch.optim:NAdam",
)  # fmt: skip
SCHEDULES = ("step", "cosine", "polynomial", "linear", "inverse_sqrt", "wsd", "one_cycle", "restarts")
ALGORITHMS: tuple[dict[str, Any], ...] = (
    {"name": "sync"},
    {"name": "sync", "reduction": "fast"},
    {"name": "sync", "noise_scale": True},
    {"name": "sync", "bucket_bytes": 4096, "reduction": "fast"},
    {"name": "sync", "form": "parameter_server"},
    {"name": "sync", "form": "parameter_server", "backup": 1},
    {"name": "downpour"},
    {"name": "downpour", "num_push": 2, "num_fetch": 3, "max_staleness": 4},
    {"name": "downpour", "push": "layerwise", "backprop": {"groups": 2, "delay": 1}},
    {"name": "downpour", "push": "delta", "steps": 3, "outer": "nesterov"},
    {"name": "downpour", "push": "delta", "steps": 3, "dynamic": True},
    {"name": "downpour", "server_rule": "staleness_aware"},
    {"name": "downpour", "server_rule": "delay_compensated"},
    {"name": "mixed", "group": 2},
    {"name": "mixed", "group": 2, "push": "delta", "steps": 3},
    {"name": "hybrid", "scheme": "a"},
    {"name": "hybrid", "scheme": "b", "split": "outputs"},
    {"name": "hybrid", "scheme": "bc"},
    {"name": "hybrid", "fc_batch": "per_turn"},
    {"name": "hybrid", "connect": {"blocks": 2}},
    {"name": "hybrid", "connect": {"blocks": 2, "rank": 4}},
    {"name": "parallel_sgd"},
    {"name": "parallel_sgd", "average_every": 3, "shuffle": "exchange"},
    {"name": "parallel_sgd", "average_every": 4, "local_after": 1, "growth": "exponential"},
    {"name": "parallel_sgd", "average_every": 2, "group": 2, "within": 2, "start": "sorted"},
    {"name": "diloco", "average_every": 3, "alpha": 0.5, "delay": 1},
    {"name": "diloco", "average_every": 4, "fragments": 2, "delay": 1},
    {"name": "admm", "form": "averaging"},
    {"name": "admm", "form": "consensus", "rho": 0.1},
    {"name": "easgd", "tau": 3},
    {"name": "eamsgd", "tau": 2, "momentum": 0.9},
    {"name": "spatial"},
)
DATA: tuple[dict[str, Any], ...] = (
    {}, {}, {}, {"mixup": 0.2}, {"random_crop": 1}, {"shuffle": False}, {"validation": 0.2},
)  # fmt: skip
TASKS = ("mixed images", "regression", "language model", "segmentation", "contrastive", "transformers")
OF_A_TASK = {"task", "model", "data"}
RESIDUAL = {"name": "resnet_cifar", "kwargs": {"depth": 8, "width": 4}}
SEEDS = (*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 100)))


def drawn(draw: Random, specs: dict[str, Any]) -> dict[str, Any]:
    """A spec as JSON, which need not be allowed. specs: of other tasks than the usual one."""
    workers = draw.choice((1, 2, 2, 3, 4))
    optimizer: dict[str, Any] = {"name": draw.choice(OPTIMIZERS), "lr": draw.choice((0.001, 0.01))}
    optimizer |= draw.choice(({}, {}, {"weight_decay": 0.1}, {"groups": [{"match": "*.bias", "lr": 0.002}]}))
    spec: dict[str, Any] = {
        "algorithm": draw.choice(ALGORITHMS),
        "model": draw.choice(("mlp", "lenet5", RESIDUAL)),
        "data": {"name": "digits", "limit": draw.choice((64, 75))} | draw.choice(DATA),
        "batch": draw.choice((4, 8)),
        "epochs": draw.choice((1, 2)),
        "optimizer": optimizer,
        "workers": {"count": workers, "virtual": draw.choice((0, 4, 6))},
        "ps": draw.choice((1, 3)),
        "seed": draw.randrange(9),
    }
    rarely: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("schedule", SCHEDULES),
        ("warmup", ({"name": "linear", "steps": 3}, {"name": "constant", "share": 0.2})),
        ("scaling", ("linear", "sqrt")),
        ("clip", ({"norm": 0.5}, {"value": 0.01})),
        ("ema", ({"decay": 0.9},)),
        ("precision", ("bfloat16", "float16")),
        ("wire", ("bfloat16",)),
        ("compress", ({"top_k": 0.1}, "sign", "int8", {"powersgd": 2})),
        ("loss", ("logistic",)),
        ("max_steps", (5,)),
        ("batch", ({"per_worker": 4, "base": 8},)),
    )
    spec |= {name: draw.choice(values) for name, values in rarely if draw.random() < 0.2}
    if draw.random() < 0.4:
        other = {name: specs[task][name] for task in [draw.choice(TASKS)] for name in specs[task].keys() & OF_A_TASK}
        data = {"name": other["data"]} if isinstance(other["data"], str) else other["data"]
        del spec["model"]
        spec |= other | {"data": data | {"limit": draw.choice((14, 20))}, "batch": 2}
    return spec


def accepted(seed: int, specs: dict[str, Any]) -> dict[str, Any]:
    """The first of the specs that a seed draws which is not refused."""
    draw = Random(seed)
    for _ in range(DRAWS):
        raw = drawn(draw, specs)
        try:
            setup = set_up(TrainSpec.model_validate(raw), None)
            with setup.dataset:
                check(setup)
        except (ValidationError, SpecRejected):
            continue
        return raw
    raise AssertionError(f"{DRAWS} specs in a row are refused")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_spec(seed: int, specs: dict[str, Any], tmp_path: Path) -> None:
    raw = accepted(seed, specs)
    spec = TrainSpec.model_validate(raw)
    first = LocalRun(spec, tmp_path / "first")
    expected = bits(first.train())
    weighs_one = spec.task.name == "classification" and not spec.task.kwargs
    if weighs_one and spec.max_steps is None and not spec.algorithm.traits.num_backup:
        assert first.trained == dict.fromkeys(range(spec.epochs), first.setups[0].dataset.num_train), raw
    for name, other in others(raw, spec, tmp_path):
        found = bits(LocalRun(TrainSpec.model_validate(other), tmp_path / name).train())
        assert found.keys() == expected.keys(), (name, raw)
        apart = [key for key, value in expected.items() if not torch.equal(value, found[key])]
        assert not apart, (name, raw)
        gc.collect()  # a run's threads and vectors refer to each other


def others(raw: dict[str, Any], spec: TrainSpec, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs that must end with the same bits, by name."""
    yield "again", raw
    traits, virtual = spec.algorithm.traits, spec.workers.virtual or spec.workers.count
    if spec.algorithm.name == "sync" and not traits.num_backup and getattr(spec.algorithm, "reduction", "") != "fast":
        for count in (count for count in (1, 2, 3, 4) if count <= virtual and count != spec.workers.count):
            yield f"{count} workers", {**raw, "workers": {"count": count, "virtual": virtual}}
    if traits.is_synchronous and not traits.num_backup:
        half = LocalRun(spec, folder / "half", limit=STEPS).train()
        yield "resumed", {**raw, "checkpoint": {"resume": str(half)}}


def bits(checkpoint: Path) -> dict[str, Tensor]:
    """All that a checkpoint holds of model and optimizer, NaN as a number."""
    files = sorted(checkpoint.glob("**/*.safetensors"))
    return {f"{file.name} {key}": torch.nan_to_num(v) for file in files for key, v in load_file(file).items()}
