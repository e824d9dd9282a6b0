"""`parallel_sgd`: equals `sync` when it averages every step, else a serial program written out; every example once."""

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.equivalence.harness import Outcome, Run, digits_spec, run_all_reduce, serial
from tests.equivalence.local.local_sgd import Meet, all_works, average, averaged, in_parts, same
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.collectives.local import local_collectives
from trainers.data.batches import Batch
from trainers.data.datasets import open_dataset
from trainers.data.order import HeldOrder
from trainers.links.local import LocalWorld
from trainers.models.registry import build_model
from trainers.spec import TrainSpec, field_errors
from trainers.spec.advice import advice
from trainers.spec.recipe import explain
from trainers.spec.resume_key import resume_key
from trainers.training.work import synchronous

NEAR = {"rtol": 2e-4, "atol": 2e-5}


def algorithm(**options: object) -> dict[str, object]:
    return {"name": "parallel_sgd"} | options


def spec(virtual: int, count: int, algorithm: object, **more: object) -> TrainSpec:
    fields = {
        "algorithm": algorithm,
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "sgd", "lr": 0.05, "weight_decay": 0.001},
    }
    return digits_spec(fields | more)


def step_batches(run: Run) -> Iterator[list[Batch]]:
    for work in all_works(run):
        yield [minibatch.batch for minibatch in work.minibatches if minibatch.batch is not None]


# -- averaging every step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("virtual", "shuffle", "optimizer"),
    [(3, "full", "sgd"), (3, "full", "momentum"), (5, "full", "nesterov"), (3, "exchange", "momentum")],
)
def test_averaging_every_step_is_serial_sgd_on_the_whole_batch(virtual: int, shuffle: str, optimizer: str) -> None:
    """203 examples: the last step of an epoch is uneven, so a mean of means would show."""
    rule = {"name": optimizer, "lr": 0.05, "weight_decay": 0.001}
    run = Run(spec(virtual, 2, algorithm(average_every=1, shuffle=shuffle, start="sorted"), optimizer=rule))
    torch.testing.assert_close(run_all_reduce(run).params, serial(run, step_batches(run), "mean"), **NEAR)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_averaging_every_step_equals_sync_on_the_same_examples(optimizer: str) -> None:
    rule = {"name": optimizer, "lr": 0.05, "weight_decay": 0.001}
    run = Run(spec(3, 2, algorithm(average_every=1, shuffle="none"), optimizer=rule))
    sync = Run(spec(3, 2, "sync", optimizer=rule))
    found = run_all_reduce(run)
    assert not torch.allclose(found.params, run_all_reduce(sync).params, **NEAR)  # from the second epoch on, others
    sync.order = run.examples(0, local_collectives(LocalWorld(), 1)[0])[1]
    torch.testing.assert_close(found.params, run_all_reduce(sync).params, **NEAR)


def test_in_the_first_epoch_the_examples_are_those_of_sync() -> None:
    fields = {"optimizer": {"name": "momentum", "lr": 0.05}, "epochs": 1}
    found = run_all_reduce(Run(spec(3, 2, algorithm(average_every=1, shuffle="none"), **fields))).params
    torch.testing.assert_close(found, run_all_reduce(Run(spec(3, 2, "sync", **fields))).params, **NEAR)


def test_averaging_is_not_sync_where_the_rule_is_not_linear() -> None:
    """The tests above can fail: the mean of RMSProp's steps is no RMSProp step."""
    run = Run(spec(3, 2, algorithm(average_every=1), optimizer={"name": "rmsprop", "lr": 0.01}))
    assert not torch.allclose(run_all_reduce(run).params, serial(run, step_batches(run), "mean"), **NEAR)


# -- averaging every H steps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [4, 7, "round"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_local_steps_are_local_sgd_written_out(every: int | str, optimizer: str) -> None:
    """Three virtual workers, 10 steps an epoch of which the last is uneven; batch norm, dropout and augmentation; a
    rate that moves."""
    fields = {"optimizer": {"name": optimizer, "lr": 0.03, "weight_decay": 0.001}, "schedule": "cosine"}
    run = Run(spec(3, 2, algorithm(average_every=every, start="sorted"), **fields))
    found = run_all_reduce(run).params
    torch.testing.assert_close(found, averaged(run, None if every == "round" else int(every)), **NEAR)
    assert not torch.allclose(found, averaged(run, 1), **NEAR)


@pytest.mark.parametrize("every", [4, "round"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_post_local_sgd_is_sync_until_the_switch_and_then_local_sgd_written_out(
    every: int | str, optimizer: str
) -> None:
    """To the bit what averages every step until then; the batch of which the rate is scaled is sync's."""
    fields = {"optimizer": {"name": optimizer, "lr": 0.03, "weight_decay": 0.001}, "schedule": "cosine"}
    options = algorithm(average_every=every, start="sorted", local_after=1)
    run = Run(spec(3, 2, options, epochs=3, **fields))
    found = run_all_reduce(run).params
    written = averaged(run, None if every == "round" else int(every), before=[1])
    torch.testing.assert_close(found, written, **NEAR)
    assert not torch.allclose(found, averaged(run, 1), **NEAR)
    assert run.spec.update_batch == 21
    until, each, constant = (
        run_all_reduce(Run(spec(3, 2, options | more, epochs=1, **fields))).params
        for more in ({}, {"average_every": 1, "local_after": 0}, {"local_after": 0})
    )
    assert torch.equal(until, each)
    assert not torch.equal(until, constant)


@pytest.mark.parametrize("local_after", [1, 2])
def test_post_local_sgd_has_the_same_bits_on_any_number_of_workers_and_when_it_goes_on(local_after: int) -> None:
    """Cut within the averaged epoch, at the switch and between two averages after it, on other numbers of workers."""
    rule = {"name": "momentum", "lr": 0.02, "equation": 10}
    options = algorithm(average_every=4, start="sorted", local_after=local_after)
    run = Run(spec(3, 2, options, optimizer=rule, schedule="cosine", epochs=3, batch=8))
    steps, expected = run.order.steps, run_all_reduce(run).buffers
    assert same(in_parts(run, [3, local_after * steps, local_after * steps + 2], [2, 3, 1, 2]), expected)


def test_a_switch_that_does_not_come_is_told() -> None:
    def told(**options: object) -> list[str]:
        return [said for said in advice(spec(2, 2, algorithm(**options)), 203) if "algorithm.local_after" in said]

    assert told(average_every=4, local_after=2)
    assert not told(average_every=4, local_after=1)
    found = explain(spec(2, 2, algorithm(average_every=4, local_after=1)), 203).quantities["average_every"]
    assert (found.value, found.formula[:15], found.source[:15]) == (4, "1 until epoch 1", "Lin et al. 2020")


def test_the_last_uneven_step_counts_by_its_examples() -> None:
    """Most workers have no examples in the last step: averaged every step, only the one that has some counts."""
    fields = {"data": {"name": "digits", "limit": 23}, "epochs": 3}
    run = Run(spec(3, 2, algorithm(average_every=1), **fields))
    assert [work.total_examples for work in all_works(run)] == [21, 2] * 3
    torch.testing.assert_close(run_all_reduce(run).params, serial(run, step_batches(run), "mean"), **NEAR)


# -- the same bits, and every example once ----------------------------------------------------------------------------

SHUFFLES = [("full", "sorted"), ("exchange", "dealt"), ("none", "sorted")]


@pytest.mark.parametrize(("shuffle", "start"), SHUFFLES)
def test_the_same_bits_on_any_number_of_workers_and_again(shuffle: str, start: str) -> None:
    options = algorithm(average_every=4, shuffle=shuffle, start=start)
    fields = {"optimizer": {"name": "momentum", "lr": 0.02}}
    one, *others = (run_all_reduce(Run(spec(5, count, options, **fields))).buffers for count in (1, 2, 2, 5))
    assert all(same(one, other) for other in others)
    assert not same(one, run_all_reduce(Run(spec(5, 2, options, seed=4, **fields))).buffers)


@pytest.mark.parametrize(("shuffle", "start"), SHUFFLES)
def test_every_example_is_trained_once_an_epoch(shuffle: str, start: str) -> None:
    run = Run(spec(5, 3, algorithm(shuffle=shuffle, start=start), epochs=4))
    world = LocalWorld()
    groups = local_collectives(world, 3)

    def worker(rank: int) -> list[tuple[int, int, list[int]]]:
        works = synchronous(*run.examples(rank, groups[rank]), run.ranks(rank, 3), 4)
        return [
            (work.epoch, m.virtual_rank, m.batch.examples.tolist())
            for work in works
            for m in work.minibatches
            if m.batch is not None
        ]

    trained = [row for rows in world.run([lambda rank=rank: worker(rank) for rank in range(3)]) for row in rows]
    of_rank = []
    for epoch in range(4):
        ids: dict[int, list[int]] = {rank: [] for rank in range(5)}
        for _, rank, examples in (row for row in trained if row[0] == epoch):
            ids[rank] += examples
        assert sorted(chain.from_iterable(ids.values())) == list(range(203))
        of_rank.append({rank: sorted(own) for rank, own in ids.items()})
        assert any(own != sorted(own) for own in ids.values())  # in an order of the epoch's
    moves = [one != other for one, other in pairwise(of_rank)]
    assert moves == [shuffle != "none"] * 3


def test_bytes_that_moved_are_told_apart_from_the_parameters() -> None:
    """On 2 workers, 80 bytes an example: in a full shuffle each sends the share of the other, in an exchange half of
    the fewer; the rest of what is sent is parameters, and samples and counts."""
    found = {}
    for kind in ("none", "exchange", "full"):
        run = Run(spec(2, 2, algorithm(shuffle=kind, start="sorted"), batch=29))
        found[kind] = run_all_reduce(run).traffic
    mine, other = run.order.partition_sizes
    assert (mine, other) == (116, 87)
    assert found["none"].shuffled_bytes == 0
    assert found["exchange"].shuffled_bytes == 2 * 2 * (other // 2) * 80
    runs, tolerance = 2 * 2 * 10, 1 + 2 * mine / 203
    assert abs(found["full"].shuffled_bytes / 80 - 2 * 2 * mine * other / 203) <= runs * tolerance
    parameters = {kind: traffic.sent_bytes - traffic.shuffled_bytes for kind, traffic in found.items()}
    assert parameters["none"] < parameters["exchange"] < parameters["full"] < parameters["none"] + 5_000


@pytest.mark.parametrize(("growth", "steps"), [("linear", [1, 3]), ("exponential", [1, 2]), ("none", [1, 1])])
def test_steps_between_averages_grow_by_epoch_and_are_local_sgd_written_out(growth: str, steps: list[int]) -> None:
    fields = {"optimizer": {"name": "momentum", "lr": 0.03, "weight_decay": 0.001}, "epochs": 3}
    run = Run(spec(3, 2, algorithm(average_every=5, local_after=2, growth=growth), **fields))
    assert [run.spec.algorithm.every(epoch) for epoch in range(4)] == [*steps, 5, 5]
    found = run_all_reduce(run).params
    torch.testing.assert_close(found, averaged(run, 5, before=steps), **NEAR)
    assert not torch.allclose(found, averaged(run, 5, before=[1, 4]), **NEAR)
    told = explain(run.spec, 203).quantities["average_every"].formula
    assert told.startswith(
        "1 until epoch 2" if growth == "none" else f"from 1, {growth}ly more by epoch, until epoch 2"
    )


def in_groups(size: int, within: int, every: int) -> Meet:
    """After each of ten steps an epoch: all average, or each group by itself."""
    step = 0

    def meet(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], shares: list[float]) -> None:
        nonlocal step
        step += 1
        if step % 10 == 0:  # the only uneven one: who counts by how much in it
            since = 9 - 9 // every * every
            counts = [7 * since + share * 14 for share in shares]
            average(models, optimizers, [count / sum(counts) for count in counts])
            step = 0
        elif step % every == 0:
            average(models, optimizers, shares)
        elif step % within == 0:
            for first in range(0, len(models), size):
                part = slice(first, first + size)
                average(models[part], optimizers[part], [1 / size] * size)

    return meet


@pytest.mark.parametrize(("within", "every"), [(2, 6), (1, 4)])
def test_averages_within_groups_are_hierarchical_local_sgd_written_out(within: int, every: int) -> None:
    """Groups of two of four virtual workers, on three workers: one group is whole on one of them."""
    fields = {
        "optimizer": {"name": "momentum", "lr": 0.03, "weight_decay": 0.001},
        "data": {"name": "digits", "limit": 266},
    }
    options = algorithm(average_every=every, group=2, within=within, start="sorted")
    run = Run(spec(4, 3, options, **fields))
    assert [sum(work.sizes) for work in all_works(run)][8:10] == [28, 14]
    found = run_all_reduce(run).params
    torch.testing.assert_close(found, averaged(run, 1, meet=in_groups(2, within, every)), **NEAR)
    assert not torch.allclose(found, averaged(run, every), **NEAR)
    assert run.spec.update_batch == (14 if within == 1 else 7)


def test_averages_within_groups_have_the_same_bits_on_any_number_of_workers_and_go_on() -> None:
    options = algorithm(average_every=6, group=3, within=2, start="sorted")
    fields = {"optimizer": {"name": "momentum", "lr": 0.02}, "epochs": 3, "batch": 8}
    one, *others = (run_all_reduce(Run(spec(6, count, options, **fields))).buffers for count in (1, 2, 4))
    assert all(same(one, other) for other in others)
    run = Run(spec(6, 2, options, **fields))
    steps = run.order.steps
    assert same(in_parts(run, [steps + 3, 2 * steps - 1], [2, 4, 3]), one)


def test_steps_grow_to_powers() -> None:
    config = ParallelSgdConfig(average_every=1000, local_after=3, growth="exponential")
    assert [config.every(epoch) for epoch in range(5)] == [1, 10, 100, 1000, 1000]
    config = ParallelSgdConfig(average_every=16, local_after=4, growth="exponential")
    assert [config.every(epoch) for epoch in range(5)] == [1, 2, 4, 8, 16]


# -- going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["full", "exchange"])
@pytest.mark.parametrize("every", [4, "round"])
def test_a_run_goes_on_bit_for_bit_on_other_workers(shuffle: str, every: object) -> None:
    """Cut between two averages within the second epoch, again just before its last step, and at its end."""
    rule = {"name": "momentum", "lr": 0.02, "equation": 10}
    options = algorithm(average_every=every, shuffle=shuffle, start="sorted")
    run = Run(spec(3, 2, options, optimizer=rule, schedule="cosine", epochs=3, batch=8))
    steps = run.order.steps
    assert steps == 9
    expected = run_all_reduce(run).buffers
    assert same(in_parts(run, [steps + 2, 2 * steps - 1, 2 * steps], [2, 3, 1, 2]), expected)


# -- what the shuffle is for ------------------------------------------------------------------------------------------


def accuracy(run: Run, outcome: Outcome) -> float:
    replica = run.replica()
    with replica.evaluating(outcome.params, {}) as model:
        (batch,) = run.dataset.test_batches(1000)
        return float((model(batch.images).argmax(1) == batch.labels).float().mean())


def test_without_the_shuffle_a_sorted_start_does_worse() -> None:
    """Two workers with five digits each that average once an epoch."""
    found = {}
    for shuffle in ("none", "exchange", "full"):
        fields = {"optimizer": {"name": "momentum", "lr": 0.05}, "data": "digits", "batch": 16, "epochs": 6}
        train = spec(2, 2, algorithm(start="sorted", shuffle=shuffle), model="mlp", **fields)
        data = open_dataset(train.data, train.seed, None)
        run = Run(train, lambda seed, d=data, t=train: build_model(t.model, d.facts.classes, d.facts.inputs, seed))
        found[shuffle] = accuracy(run, run_all_reduce(run))
    assert found["full"] > 0.93
    assert found["exchange"] > 0.93
    assert found["none"] < found["full"] - 0.05, found


# -- its spec ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "pointer", "message"),
    [
        ({"average_every": 0}, "average_every", "a number of steps from 1"),
        ({"average_every": "epoch"}, "average_every", "or round"),
        ({"average_every": True}, "average_every", "or round"),
        ({"average_every": 1, "local_after": 2}, "local_after", "leave it out"),
        ({"growth": "linear", "average_every": 4}, "growth", "in how many epochs"),
        ({"growth": "linear", "local_after": 2}, "growth", "give average_every a number"),
        ({"average_every": 8, "group": 2}, "within", "go together"),
        ({"average_every": 8, "within": 2}, "within", "go together"),
        ({"average_every": 8, "group": 2, "within": 8}, "within", "give fewer steps than that"),
        ({"average_every": 8, "group": 2, "within": 2}, "group", "2 virtual workers do not form several groups of 2"),
        ({"shuffle": "exchange", "samples": 5}, "samples", "set shuffle to full"),
        ({"shuffle": "half"}, "shuffle", "there are none, exchange, full"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], pointer: str, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        spec(2, 2, algorithm(**options))
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == f"/algorithm/{pointer}"
    assert message in found.message


def test_a_spec_is_what_it_was_after_a_journey() -> None:
    kept = spec(2, 2, algorithm(average_every=10, start="sorted", samples=7))
    assert TrainSpec.model_validate(kept.model_dump()) == kept
    assert TrainSpec.model_validate_json(kept.model_dump_json()) == kept


def test_within_an_epoch_the_division_must_stay_and_the_averages_may_change() -> None:
    def fields(algorithm: object) -> dict[str, object]:
        return resume_key(spec(2, 2, algorithm))

    one = fields(algorithm(start="sorted"))
    assert fields(algorithm(start="sorted", average_every=3, local_after=1)) == one
    for changed, options in {"shuffle": "none", "start": "dealt", "samples": 3}.items():
        other = fields(algorithm(**{"start": "sorted", changed: options}))
        assert [name for name in one if one[name] != other[name]] == [f"algorithm.{changed}"]
    assert fields("sync")["algorithm"] != one["algorithm"] != fields({"name": "admm", "form": "consensus"})["algorithm"]


def test_a_held_order_has_the_sizes_of_the_global_one() -> None:
    order = HeldOrder(203, 7, 3, seed=3)
    held = np.split(np.random.default_rng(0).permutation(203), np.cumsum(order.partition_sizes)[:-1])
    order.hold(dict(enumerate(held)))
    for epoch in range(2):
        parts = [order.examples(epoch, i) for i in range(order.minibatches)]
        assert [len(part) for part in parts] == [order.size(i) for i in range(order.minibatches)]
        assert sorted(np.concatenate(parts).tolist()) == list(range(203))
        assert len(order.examples(epoch, order.minibatches)) == 0
    assert [sorted(order.examples_of(rank, epoch=5).tolist()) for rank in range(3)] == [
        sorted(ids.tolist()) for ids in held
    ]
    order.hold(dict(enumerate(np.split(np.arange(203), np.cumsum(order.partition_sizes)[:-1]))))
    assert sorted(order.examples_of(0, epoch=5).tolist()) == list(
        range(order.partition_size(0))
    )  # also in an epoch that was asked for before
