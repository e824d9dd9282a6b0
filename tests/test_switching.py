"""Any algorithm goes on from the checkpoint of any other: all ordered pairs, through real checkpoint files."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.local_runs import LocalRun
from trainers.algorithms import CONFIGS
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec
from trainers.spec.resume_key import resume_key
from trainers.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from trainers.training.setup import set_up

EXAMPLES = 37


def variants() -> dict[str, dict[str, Any]]:
    """Every algorithm of the spec in each of its forms, with its default options."""
    found: dict[str, dict[str, Any]] = {}
    for name, config in CONFIGS.items():
        form = config.model_fields.get("form")
        for each in get_args(form.annotation) if form else (None,):
            found[f"{name} {each}" if each else name] = {"name": name} | ({"form": each} if each else {})
    found["eamsgd"] = {"name": "eamsgd", "tau": 2}
    found["downpour delta"] = {"name": "downpour", "push": "delta", "steps": 2}
    found["mixed delta"] = {"name": "mixed", "group": 2, "push": "delta", "steps": 2}
    return found | {"sync backup": {"name": "sync", "form": "parameter_server", "backup": 1}}


def keeps_momentum(variant: str) -> bool:
    """Whether its checkpoints have the optimizer's state: not where workers alone know it."""
    return spec(variant, 1).algorithm.traits.outer is None


VARIANTS = variants()
PAIRS = list(itertools.product(VARIANTS, VARIANTS))


def spec(variant: str, epochs: int, **fields: object) -> TrainSpec:
    base: dict[str, object] = {
        "algorithm": VARIANTS[variant],
        "workers": 3 if "backup" in variant else 2,
        "ps": 2,
        "model": "lenet5",  # convolutions and then fully connected layers, which every algorithm trains
        "data": {"name": "digits", "limit": EXAMPLES},
        "batch": 6,
        "optimizer": {"name": "momentum", "lr": 0.01},
        "epochs": epochs,
    }
    return TrainSpec.model_validate(base | fields)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int | None], Path]:
    """Filled by `checkpoint`."""
    return {("", None): tmp_path_factory.mktemp("checkpoints")}


@pytest.fixture
def checkpoint(checkpoints: dict[tuple[str, int | None], Path]) -> Any:
    """Of a variant: after its first epoch, or after so many steps of each worker."""

    def made(variant: str, limit: int | None = None) -> Path:
        if (variant, limit) not in checkpoints:
            folder = checkpoints["", None] / f"{variant}-{limit}"
            checkpoints[variant, limit] = LocalRun(spec(variant, 1), folder, limit=limit).train()
        return checkpoints[variant, limit]

    return made


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_every_algorithm_goes_on_from_every_other(before: str, after: str, checkpoint: Any, tmp_path: Path) -> None:
    old = checkpoint(before)
    found = read_checkpoint(old)
    assert (found.position.epoch, found.position.within_epoch) == (1, False)
    run = LocalRun(spec(after, 2, checkpoint={"resume": str(old)}), tmp_path / "run")
    layout, whole = run.setups[0].layout, run.start.buffers
    kept = [(whole.params, found.model)]
    if keeps_momentum(before) and keeps_momentum(after):
        kept.append((whole.state["momentum"], found.optimizer["momentum"]))
    for vector, named in kept:
        assert any(tensor.any() for tensor in named.values())
        for name, view in layout.named(vector).items():
            assert torch.equal(view, named[name]), name
    last = read_checkpoint(run.train())
    assert run.trained == {1: EXAMPLES}, "the first epoch is behind it, the second is trained once"
    assert (last.position.epoch, last.position.within_epoch, last.position.examples) == (2, False, 2 * EXAMPLES)
    assert set(last.model) == set(found.model)
    assert all(tensor.isfinite().all() for tensor in last.model.values())
    assert any(not torch.equal(last.model[name], tensor) for name, tensor in found.model.items())


@pytest.mark.parametrize("after", list(filter(keeps_momentum, VARIANTS)))
def test_the_optimisers_state_is_gone_on_with(after: str, checkpoint: Any, tmp_path: Path) -> None:
    """From a checkpoint whose momentum was wiped out the result is another."""
    old, wiped = checkpoint("sync all_reduce"), tmp_path / "wiped"
    found = read_checkpoint(old)
    blank = {
        state: {name: torch.zeros_like(tensor) for name, tensor in named.items()}
        for state, named in found.optimizer.items()
    }
    write_checkpoint(wiped, replace(found, optimizer=blank))

    def gone_on(resume: Path) -> Checkpoint:
        train = spec(after, 2, checkpoint={"resume": str(resume)})
        return read_checkpoint(LocalRun(train, tmp_path / f"from-{resume.name}").train())

    one, other = gone_on(old), gone_on(wiped)
    assert any(not torch.equal(other.model[name], tensor) for name, tensor in one.model.items())


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_within_an_epoch_what_divides_the_examples_otherwise_is_refused(
    before: str, after: str, checkpoint: Any, tmp_path: Path
) -> None:
    """And whatever divides them alike trains what is left. A round of steps is in a checkpoint once it is pushed."""
    old = checkpoint(before, limit=1 if keeps_momentum(before) else 2)
    found = read_checkpoint(old)
    assert found.position.within_epoch
    fields = spec(after, 1, checkpoint={"resume": str(old)})
    mine, theirs = resume_key(fields), resume_key(TrainSpec.model_validate(found.spec))
    if mine != theirs:
        field = next(name for name, value in theirs.items() if mine[name] != value)
        with pytest.raises(SpecRejected, match=rf"^{re.escape(field)}: .*end of an epoch"):
            set_up(fields, None).begin()
        return
    run = LocalRun(fields, tmp_path / "run")
    last = read_checkpoint(run.train())
    assert run.trained == {0: EXAMPLES - found.position.examples}
    assert (last.position.epoch, last.position.examples) == (1, EXAMPLES)
