"""Datasets of one's own whose examples are anything."""

from functools import partial

import numpy as np
import pytest
import torch

from trainers.data.datasets import open_dataset
from trainers.data.facts import DataFacts
from trainers.data.records.objects import stacked
from trainers.errors import SpecRejected, UserCodeFailed
from trainers.spec import DataSpec, TrainSpec
from trainers.tasks.config import TaskSpec
from trainers.tasks.registry import collate_of
from trainers.training.setup import set_up

SETS = "tests.data.ownsets"
PLAN = [(0, np.array([5, 3, 8])), (0, np.array([0])), (2, np.array([3, 5])), (2, np.array([], dtype=np.int64))]


COLLATE = partial(collate_of, TaskSpec(name=f"{SETS}:Means"), "cross_entropy", DataFacts(()))


def minibatches(processes: int, plan: list, name: str = "even_sentences", collates: bool = False) -> list:
    with open_dataset(DataSpec(name=f"{SETS}:{name}", loader_processes=processes), seed=4) as dataset:
        if collates:
            dataset.collate_by(COLLATE)
        return [batch.data for batch in dataset.batches(plan)]


def test_what_examples_and_collate_draw_is_the_same_whoever_reads_them() -> None:
    """Sentences of several lengths, from objects that cannot be pickled, which a task of one's own pads."""
    state = torch.random.get_rng_state()
    here, there = (minibatches(processes, PLAN, "sentences", collates=True) for processes in (0, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert here[0]["words"].shape == (3, 5)
    assert here[3] is there[3] is None
    for mine, theirs in zip(here[:3], there[:3], strict=True):
        assert torch.equal(mine["about"][0], theirs["about"][0])
        assert torch.equal(mine["words"], theirs["words"])


def test_what_an_example_draws_depends_on_the_epoch_and_not_on_its_neighbours() -> None:
    first, _, later, _ = (data and data["about"]["noise"] for data in minibatches(0, PLAN))
    (again,) = minibatches(0, [(0, np.array([8, 1, 3]))])
    assert again["about"]["noise"][[2, 0]].tolist() == first[[1, 2]].tolist()
    assert later[0] != first[1]


def test_numbers_are_stacked_as_losses_take_them() -> None:
    (batch, *_) = minibatches(0, PLAN)
    assert batch["words"].shape == (3, 3)
    assert (batch["words"].dtype, batch["about"]["length"].dtype, batch["y"].dtype) == (
        torch.float32, torch.int64, torch.float32,
    )  # fmt: skip
    image = np.zeros((2, 2), np.uint8)
    found = stacked([(image, np.int32(1), True, "a")] * 2)
    assert [part.dtype for part in found[:3]] == [torch.uint8, torch.int64, torch.bool]


@pytest.mark.parametrize(
    ("root", "facts"),
    [
        ("vectors", DataFacts((3,), classes=4)),
        ("counted", DataFacts((3,), classes=4)),
        ("tokens", DataFacts((5,), vocabulary=9, padded=True)),
        ("numbers", DataFacts((3,), outputs=1)),
        ("several", DataFacts((3,), outputs=4)),
        ("plain", DataFacts((2, 3))),
    ],
)
def test_the_first_example_and_the_set_say_what_a_model_must_fit(root: str, facts: DataFacts) -> None:
    with open_dataset(DataSpec(name=f"{SETS}:told", root=root, loader_processes=0, limit=3), 0) as dataset:
        assert dataset.facts == facts
        assert dataset.num_train == 3
        assert [len(batch) for batch in dataset.test_batches(100)] == [dataset.num_test]


def test_examples_of_several_sizes_are_not_stacked() -> None:
    with pytest.raises(UserCodeFailed, match=r"example 3 has other shapes than others, such as example 5: words \(5,"):
        minibatches(0, PLAN, "sentences")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"data": "digits"}, "give a dataset of your own"),
        ({"algorithm": "parallel_sgd", "workers": 2}, "need them in memory, and .*:sentences is read one by one"),
        ({"data": {"name": f"{SETS}:told", "root": "odd"}}, "classes .* is a object; it must be a number or a list"),
        ({"task": "classification", "data": {"name": f"{SETS}:told", "root": "plain"}}, "labels"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict, why: str) -> None:
    base = {"task": f"{SETS}:Means", "data": f"{SETS}:sentences"}
    with pytest.raises((SpecRejected, UserCodeFailed), match=why):
        set_up(TrainSpec.model_validate(base | fields), None)


def test_a_collate_that_raises_is_named_with_its_example() -> None:
    spec = TrainSpec.model_validate(
        {"task": f"{SETS}:Broken", "data": {"name": f"{SETS}:sentences", "loader_processes": 0}}
    )
    setup = set_up(spec, None)
    with pytest.raises(UserCodeFailed, match=r"collate, on .*example 5 and others, raised KeyError: 'nothing'"):
        next(setup.dataset.batches(PLAN))
