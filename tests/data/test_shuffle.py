"""ShuffleSGD: what it decides, what it moves, and that nobody ever has the whole."""

import fcntl
import gc
import itertools
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contracts.groups import KINDS, Groups, rendezvous_for
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block
from trainers.data import datasets
from trainers.data.batches import Dataset
from trainers.data.datasets import open_dataset, open_partitioned
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays
from trainers.data.order import HeldOrder
from trainers.data.partitioned.dataset import Partition, PartitionedDataset, Partitioning
from trainers.data.partitioned.exchange import PairwiseExchange
from trainers.data.partitioned.rows import Rows, row_type
from trainers.data.partitioned.shuffle import Held, Shuffle, by_rank, cells_of, first_partitions, partner
from trainers.data.sources import read_source
from trainers.errors import SpecRejected
from trainers.spec import DataSpec, TrainSpec
from trainers.training.setup import preflight

SIZES = [(102, 101), (70, 70, 63), (49, 42, 42, 35, 35), (203,), (3, 0, 7, 1), (400,) * 7]


def drawn(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def cut(ids: Int64Array, sizes: tuple[int, ...]) -> list[Int64Array]:
    return np.split(ids, np.cumsum(sizes)[:-1])


def by_label(labels: Int64Array, sizes: tuple[int, ...]) -> list[Int64Array]:
    """Sorted by label and cut."""
    return cut(np.argsort(labels, kind="stable"), sizes)


def histogram(labels: Int64Array, num_labels: int) -> Int64Array:
    return np.bincount(labels, minlength=num_labels)


def tolerance(sizes: tuple[int, ...], rank: int, runs: int = 1) -> float:
    """How far a virtual worker's count of a label may be from its share of them after a full shuffle.

    Up to time t worker v has t c_v stripes to within 1/2, and all workers have t N to within V/2. So of the first p
    stripes it has p c_v / N to within (1 + V c_v / N) / 2, and of a run of adjacent stripes its share to within twice
    that. The examples of a label are one run if no other label is in its cell, else up to one per virtual worker.
    """
    return runs * (1 + len(sizes) * sizes[rank] / sum(sizes)) + 1e-9


# -- what it decides --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_of_any_run_of_stripes_every_worker_has_its_part(sizes: tuple[int, ...]) -> None:
    """The lemma behind the tolerance, over all runs."""
    shuffle = Shuffle("full", 8, 0, sizes)
    assert np.bincount(shuffle.stripes, minlength=len(sizes)).tolist() == list(sizes)
    for rank, size in enumerate(sizes):
        ahead = np.cumsum(np.concatenate([[0], shuffle.stripes == rank]))
        behind = ahead - np.arange(len(ahead)) * size / sum(sizes)
        assert behind.max() - behind.min() <= tolerance(sizes, rank)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("start", ["sorted", "mixed"])
@pytest.mark.parametrize("samples", [64, 2])
def test_a_full_shuffle_leaves_every_worker_with_the_labels_of_the_whole(
    sizes: tuple[int, ...], start: str, samples: int
) -> None:
    """Ten labels, the first ones rare; with two samples a worker several labels lie in one cell, so that the wider
    tolerance holds for them."""
    draw, total = drawn(len(sizes)), sum(sizes)
    labels = np.minimum(draw.integers(0, 10, total), draw.integers(5, 10, total))
    held = by_label(labels, sizes) if start == "sorted" else cut(draw.permutation(total), sizes)
    shuffle = Shuffle("full", samples, 3, sizes)
    found = shuffle.replayed(held, labels, 1)
    assert [len(ids) for ids in found] == list(sizes)
    assert sorted(np.concatenate(found).tolist()) == list(range(total))
    whole = histogram(labels, 10)
    parts = {rank: Held(ids, labels[ids]) for rank, ids in enumerate(map(np.sort, held))}
    cells = cells_of(np.arange(10), shuffle.cuts(0, parts, by_rank))
    labels_in = np.bincount(cells[whole > 0], minlength=10)
    runs = np.where(labels_in[cells] > 1, len(sizes), 1)  # (10,)
    if samples == 64 and total > 1000:
        assert (labels_in <= 1).all()
    for rank, ids in enumerate(found):
        off = np.abs(histogram(labels[ids], 10) - whole * sizes[rank] / total)
        allowed = [tolerance(sizes, rank, int(count)) for count in runs]
        assert (off <= allowed).all(), (rank, off)


def test_bins_that_are_ranges_of_the_sorted_examples_would_not_pass() -> None:
    """The report's bins taken literally, which is also the state of a run without a shuffle."""
    sizes, labels = (70, 70, 63), drawn(1).integers(0, 10, 203)
    off = histogram(labels[by_label(labels, sizes)[0]], 10) - histogram(labels, 10) * 70 / 203
    assert np.abs(off).max() > 2 * tolerance(sizes, 0, len(sizes))


def test_labels_that_no_sample_had_are_in_one_cell_and_are_distributed_too() -> None:
    """Labels below, between and above those that the samples show."""
    sizes = (50, 50, 50)
    labels = np.repeat([0, 5, 9, 4], [3, 141, 4, 2])
    shuffle = Shuffle("full", 1, 3, sizes)
    found = shuffle.replayed(by_label(labels, sizes), labels, 1)
    for rank, ids in enumerate(found):
        off = np.abs(histogram(labels[ids], 10) - histogram(labels, 10) / 3)
        assert off.max() <= tolerance(sizes, rank, 3)


def test_each_round_deals_otherwise_and_from_the_seed_alone() -> None:
    sizes, labels = (70, 70, 63), drawn(1).integers(0, 10, 203)
    first = by_label(labels, sizes)

    def after(rounds: int, seed: int = 3, kind: str = "full") -> list[list[int]]:
        return [ids.tolist() for ids in Shuffle(kind, 64, seed, sizes).replayed(first, labels, rounds)]  # type: ignore[arg-type]

    assert after(2) == after(2)
    assert after(1) != after(2) != after(3)
    assert after(2) != after(2, seed=4)
    assert after(1, kind="exchange") != after(2, kind="exchange")
    assert after(3, kind="none") == [sorted(ids.tolist()) for ids in first]


@pytest.mark.parametrize("num_virtual", range(1, 9))
def test_everyone_exchanges_with_everyone(num_virtual: int) -> None:
    rounds = max(1, num_virtual - 1 + num_virtual % 2)
    met = set()
    for epoch in range(rounds):
        with_whom = [partner(num_virtual, epoch, rank) for rank in range(num_virtual)]
        assert [with_whom[other] for other in with_whom] == list(range(num_virtual))  # each is its partner's partner
        assert sum(other == rank for rank, other in enumerate(with_whom)) == num_virtual % 2
        met |= {(rank, other) for rank, other in enumerate(with_whom) if rank != other}
    assert met == set(itertools.permutations(range(num_virtual), 2))


def test_an_exchange_swaps_half_of_the_fewer() -> None:
    sizes = (70, 70, 63)
    shuffle, ids = Shuffle("exchange", 1, 3, sizes), cut(np.arange(203), (70, 70, 63))
    found = shuffle.replayed(ids, np.zeros(203, dtype=np.int64), 1)
    for rank in range(3):
        stayed = len(set(ids[rank].tolist()) & set(found[rank].tolist()))
        other = partner(3, 0, rank)
        assert stayed == sizes[rank] - (0 if other == rank else min(sizes[rank], sizes[other]) // 2)


@pytest.mark.parametrize("start", ["sorted", "dealt"])
def test_the_first_partitions(start: Any) -> None:
    labels = drawn(2).integers(0, 10, 203)
    order = HeldOrder(203, 7, 3, seed=3)
    dealt = [order.examples_of(rank, epoch=0) for rank in range(3)]
    found = first_partitions(start, dealt, labels)
    assert tuple(len(ids) for ids in found) == order.partition_sizes
    assert sorted(np.concatenate(found).tolist()) == list(range(203))
    if start == "sorted":
        assert (np.diff(labels[np.concatenate(found)]) >= 0).all()


# -- what it moves ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def groups(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Groups]:
    with rendezvous_for(request.param) as rendezvous:
        yield Groups(request.param, tmp_path, rendezvous)


IMAGE = (3, 5, 3)
"""45 bytes: no multiple of 4."""

LABELS = drawn(5).integers(0, 10, 203)
IMAGES = drawn(6).integers(0, 256, (203, *IMAGE), dtype=np.uint8)
IMAGES[::3] = np.resize(np.array([1, 0, 0xA0, 0x7F], dtype=np.uint8), IMAGE)  # as float32, NaNs that signal
CPU = torch.device("cpu")


def partition(collectives: Collectives, shuffle: Shuffle) -> Partition:
    """One worker's part of examples that are sorted by label."""
    order = HeldOrder(203, 7, len(shuffle.partition_sizes), seed=3)
    ranks = range(*block(order.num_virtual, collectives.rank, collectives.size))
    held = by_label(LABELS, shuffle.partition_sizes)
    ids = np.concatenate([held[rank] for rank in ranks])
    rows = Rows(row_type(IMAGE), len(ids) + order.num_virtual)
    rows.rows["id"][: len(ids)], rows.rows["label"][: len(ids)] = ids, LABELS[ids]
    rows.rows["image"][: len(ids)] = IMAGES[ids]
    rows.rows["rank"][: len(ids)] = np.repeat(ranks, [len(held[rank]) for rank in ranks])
    found = Partition(rows, order, ranks, shuffle)
    found.hold()
    return found


@pytest.mark.parametrize("kind", ["full", "exchange"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_examples_arrive_whole_where_a_single_process_says_they_go(groups: Groups, size: int, kind: Any) -> None:
    """Three rounds on five virtual workers, a few rows at a time: ids, labels and every byte of the images; as many
    bytes as examples changed their worker; and never more rows than at first."""
    sizes = HeldOrder(203, 7, 5, seed=3).partition_sizes
    shuffle = Shuffle(kind, 64, 3, sizes)

    def body(collectives: Collectives) -> tuple[list[list[Held]], int, int]:
        mine = partition(collectives, shuffle)
        rows, exchange, seen = mine.rows.rows, PairwiseExchange(collectives, 5, CPU, chunk_bytes=7 * 64), []
        for epoch in range(3):
            mine.shuffle_before(epoch, exchange)
            assert mine.rows.rows is rows
            for rank in mine.ranks:
                ids = mine.rows.of(rank).ids
                assert np.array_equal(rows["image"][mine.rows.find(ids)], IMAGES[ids])
                trained = [mine.order.examples(epoch, 5 * step + rank) for step in range(mine.order.steps)]
                assert sorted(np.concatenate(trained).tolist()) == ids.tolist()
            seen.append([mine.rows.of(rank) for rank in mine.ranks])
        return seen, collectives.meter.counted.shuffled_bytes, collectives.meter.counted.sent_bytes

    results = groups.run(size, body)
    home = np.repeat(np.arange(size), [hi - lo for lo, hi in (block(5, k, size) for k in range(size))])
    before, moved = by_label(LABELS, sizes), 0
    for epoch in range(3):
        expected = shuffle.replayed(by_label(LABELS, sizes), LABELS, epoch + 1)
        found = [held for seen, _, _ in results for held in seen[epoch]]
        for ids, held in zip(expected, found, strict=True):
            assert np.array_equal(ids, held.ids)
            assert np.array_equal(LABELS[ids], held.labels)
        was, now = (np.empty(203, dtype=np.int64) for _ in range(2))
        for rank in range(5):
            was[before[rank]], now[expected[rank]] = home[rank], home[rank]
        moved += int((was != now).sum())
        before = expected
    row_bytes = row_type(IMAGE).itemsize
    assert row_bytes == 64
    assert sum(shuffled for _, shuffled, _ in results) == moved * row_bytes
    assert all(shuffled <= sent for _, shuffled, sent in results)
    assert moved or size == 1


@pytest.mark.parametrize("size", [2, 4, 8])
def test_bytes_moved_are_the_reports_order_d(size: int) -> None:
    """A full shuffle moves (1 - 1/K) D. What a worker holds of a label is a run, of which it keeps 1/K but for the
    tolerance of one."""
    total, num_labels = 4000, 10
    labels = drawn(4).integers(0, num_labels, total)
    sizes = (total // size,) * size
    shuffle = Shuffle("full", 64, 3, sizes)
    before = by_label(labels, sizes)
    after = shuffle.replayed(before, labels, 1)
    moved = sum(len(np.setdiff1d(was, now)) for was, now in zip(before, after, strict=True))
    runs = sum(len(np.unique(labels[ids])) for ids in before)
    assert abs(moved - (1 - 1 / size) * total) <= runs * tolerance(sizes, 0)
    assert moved <= total
    exchanged = Shuffle("exchange", 64, 3, sizes).replayed(before, labels, 1)
    assert sum(len(np.setdiff1d(was, now)) for was, now in zip(before, exchanged, strict=True)) == total // 2


# -- what is held -----------------------------------------------------------------------------------------------------


def held(data: PartitionedDataset, ranks: range, kind: Any = "full") -> HeldOrder:
    order = HeldOrder(data.num_train, 7, 3, seed=3)
    data.hold(order, ranks, Partitioning("sorted", Shuffle(kind, 64, 3, order.partition_sizes)), rounds=0)
    return order


def test_processes_of_a_node_read_the_source_in_turn(tmp_path: Path) -> None:
    """Each lets go of it when it has what it wanted, also where only the first of several minibatches was wanted."""
    spec, plan = DataSpec(name="digits", limit=203), [(0, np.array([1, 2])), (0, np.array([3]))]
    first, second = (open_partitioned(spec, 3, tmp_path) for _ in range(2))
    assert next(iter(first.batches(plan))).labels.shape == (2,)
    under_way = first.batches(plan)
    next(under_way)
    with open(tmp_path / "source.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    under_way.close()  # type: ignore[attr-defined]
    held(second, range(3))


def test_the_whole_set_is_let_go_once_it_is_partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[np.ndarray]] = []

    def read(data: DataSpec, _: object) -> Arrays:
        source = read_source(data)
        assert isinstance(source, Arrays)
        images = source.train_images.copy()
        opened.append(weakref.ref(images))
        return replace(source, train_images=images)

    monkeypatch.setattr(datasets, "read_any", read)
    data = open_partitioned(DataSpec(name="digits", limit=203, memory_limit_bytes=0), seed=3)
    assert data.num_train == 203
    order = held(data, range(1))
    (batch,) = data.batches([(0, order.examples(0, 0))])
    assert len(batch) == 7
    gc.collect()
    assert len(opened) == 2
    assert all(source() is None for source in opened)
    assert data._partition is not None
    assert data._partition.rows.rows.nbytes <= (order.partition_size(0) + 3) * (64 + 16)
    assert data._arrays is not None
    assert data._arrays.train_images.nbytes == 0


def assert_same_batches(one: PartitionedDataset, other: Dataset, plan: list[tuple[int, Int64Array]]) -> None:
    for found, expected in zip(one.batches(plan), other.batches(plan), strict=True):
        assert torch.equal(found.images, expected.images)
        assert torch.equal(found.labels, expected.labels)


@pytest.mark.parametrize("start", ["dealt", "sorted"])
def test_a_process_holds_in_its_next_generation_what_one_that_joins_there_does(start: Any) -> None:
    """Other virtual workers' examples, as they lie after more rounds."""
    spec = DataSpec(name="digits", limit=203)
    survivor, joins = (open_partitioned(spec, seed=3) for _ in range(2))
    orders = [HeldOrder(203, 7, 3, seed=3) for _ in range(2)]
    how = Partitioning(start, Shuffle("full", 64, 3, orders[0].partition_sizes))
    survivor.hold(orders[0], range(1), how, rounds=0)
    for data, order in zip((survivor, joins), orders, strict=True):
        data.hold(order, range(1, 3), how, rounds=2)
    one, other = ([(2, order.examples(2, 3 * step + 1)) for step in range(9)] for order in orders)
    assert all(np.array_equal(ids, those) for (_, ids), (_, those) in zip(one, other, strict=True))
    assert_same_batches(survivor, joins, one)


def test_minibatches_are_those_of_the_whole_set_to_the_bit() -> None:
    """Augmented by id: before anything is held, and out of a partition."""
    spec = DataSpec(name="digits", limit=203, random_crop=1, horizontal_flip=True)
    whole, data = open_dataset(spec, seed=3), open_partitioned(spec, seed=3)
    assert data.facts.inputs == whole.facts.inputs
    plan = [(1, np.array([5, 100, 3]))]
    assert_same_batches(data, whole, plan)
    order = held(data, range(1, 3))
    assert_same_batches(data, whole, [(1, order.examples(1, 3 * step + 1)) for step in range(9)])
    with pytest.raises(AssertionError, match="does not hold"):
        list(data.batches([(1, by_label(read_source(spec).train_labels, order.partition_sizes)[0])]))  # type: ignore[union-attr]
    (one,), (other,) = ([*source.test_batches(360)] for source in (data, whole))
    assert torch.equal(one.images, other.images)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_limit_bytes": 10_000}, "image_folder is read one by one, or is larger than data.memory_limit_bytes"),
        ({"random_resized_crop": 32}, "those of image_folder differ; leave out random_resized_crop, and set data.res"),
    ],
)
def test_images_that_workers_cannot_hold_are_refused_with_the_remedy(
    photographs: Path, options: dict[str, int], words: str
) -> None:
    with pytest.raises(SpecRejected, match=words):
        preflight(_of_photographs(photographs, options))


def test_workers_hold_photographs_of_one_size(photographs: Path, node: Path) -> None:
    spec = _of_photographs(photographs, {"resize": 32})
    preflight(spec)
    with open_partitioned(spec.data, 0, node) as data, open_dataset(spec.data, 0) as streamed:
        assert_same_batches(data, streamed, [(0, np.array([7, 2, 11]))])
        for mine, theirs in zip(data.test_batches(3), streamed.test_batches(3), strict=True):
            assert torch.equal(mine.images, theirs.images)


def _of_photographs(root: Path, options: dict[str, int]) -> TrainSpec:
    data = {"name": "image_folder", "root": str(root), **options}
    return TrainSpec.model_validate({"data": data, "algorithm": "parallel_sgd", "model": "resnet18"})
