"""Shards that are killed, wherever they are: no acknowledged update is lost, none is applied twice."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.contracts.groups import in_threads, rendezvous_for
from tests.contracts.shards import begin_push, push
from tests.faults.copy_process import Nodes
from tests.faults.shard_process import POINTS, Setup, Shards
from trainers.parameter_server.protocol import ParameterStore
from trainers.parameter_server.push_identity import IdentitySet
from trainers.parameter_server.record import JournalContents
from trainers.spec import MomentumSpec

WORKERS = 2


@pytest.fixture(params=["shared_memory", "process_group"])
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    with rendezvous_for(request.param) as rendezvous:
        yield Setup(tmp_path, rendezvous.port if rendezvous else 0)


def train(shards: Shards | Nodes, pushes: int, before_push: Callable[[int], None]) -> list[int]:
    """Two workers divide so many pushes of ones between them, and wait for each; `before_push` is called with its
    number. Returns the numbers of those that were acknowledged."""

    def worker(rank: int, store: ParameterStore) -> list[int]:
        found = []
        for step, number in enumerate(range(rank, pushes, WORKERS)):
            params = store.fetch(max(0, step - 3)).wait().params
            for cut in shards.setup.cuts:
                assert bool((params[cut] == params[cut.start]).all())
            before_push(number)
            push(store, number, 1.0, step + 1)
            found.append(number)
        store.leave()
        assert [p.identity.first for p in store.applied] == found
        store.close()
        return found

    stores = [shards.store(rank) for rank in range(WORKERS)]
    lists = in_threads([lambda r=r, s=s: worker(r, s) for r, s in enumerate(stores)])
    return sorted(number for numbers in lists for number in numbers)


def check(shards: Shards, acknowledged: list[int]) -> None:
    """On every shard the sum is the number of identities that were applied, and those are what was acknowledged."""
    for index in range(shards.setup.num_shards):
        shards.kill(index)
        left, params = shards.left(index)
        assert IdentitySet.from_json(left.rows).minibatches(0) == set(acknowledged)
        assert left.record.newest.number == left.record.newest.examples == len(acknowledged)
        assert torch.equal(params, torch.full_like(params, len(acknowledged)))


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.long
def test_shards_killed_at_any_time_lose_nothing(setup: Setup, kills: int) -> None:
    """Half of the kills fall between the shards of one push: one has it, the other is dead. The others come from a
    thread of their own."""
    dice, shards = random.Random(kills), Shards(setup)
    pushes, timers = 6 * kills, list[threading.Timer]()

    def die(index: int) -> None:
        shards.kill(index)
        shards.bring_back(index)

    def before_push(number: int) -> None:
        if number % 6 != 3:
            return
        index = dice.randrange(setup.num_shards)
        for timer in timers:
            timer.join()
        if number % 4 == 1:
            shards.kill(index)
            timers.append(threading.Timer(0.01, shards.bring_back, [index]))
        else:
            timers.append(threading.Timer(dice.uniform(0, 0.005), die, [index]))
        timers[-1].start()

    try:
        acknowledged = train(shards, pushes, before_push)
        for timer in timers:
            timer.join()
        assert acknowledged == list(range(pushes))
        assert shards.deaths == kills
        check(shards, acknowledged)
    finally:
        shards.stop()


@pytest.mark.parametrize(
    "point", [point if point == "commit" else pytest.param(point, marks=pytest.mark.long) for point in POINTS]
)
def test_a_shard_that_dies_at_a_point_of_an_update_goes_on_from_the_last_whole_version(
    tmp_path: Path, point: str
) -> None:
    """With momentum, so that the state counts too: the bits of a run that nothing disturbed."""
    found = []
    for deaths in (0, 3):
        folder = tmp_path / str(deaths)
        folder.mkdir()
        shards = Shards(Setup(folder, 0, rule=MomentumSpec(weight_decay=0), learning_rate=0.1))
        try:
            found.append(run_with_deaths(shards, point, deaths))
        finally:
            shards.stop()
    for (calm, params), (left, others) in zip(*found, strict=True):
        assert (left.record.newest.number, left.rows) == (calm.record.newest.number, calm.rows)
        assert left.record.newest.examples == calm.record.newest.examples == 20
        assert torch.equal(params, others)


def run_with_deaths(shards: Shards, point: str, deaths: int) -> list[tuple[JournalContents, torch.Tensor]]:
    """One worker's twenty pushes, while the second shard dies `deaths` times. What each shard leaves."""
    store, random_values = shards.store(0), torch.Generator().manual_seed(1)
    if deaths:
        shards.kill(1)
        shards.bring_back(1, (point, 2))

    def revive() -> None:
        for left in reversed(range(deaths)):
            shards.bring_back(1, (point, 2) if left else None)

    reviver = threading.Thread(target=revive)
    reviver.start()
    for number in range(20):
        store.fetch(number).wait()
        value = torch.randn(store.gradient_buffer().shape, generator=random_values)
        push(store, number, value, number + 1, wire="bfloat16" if number % 2 else "float32")
    reviver.join()
    store.leave()
    store.close()
    for index in range(2):
        shards.kill(index)
    return [shards.left(index) for index in range(2)]


def test_who_stays_at_a_version_repeats_its_pushes_until_the_step_is_made(tmp_path: Path) -> None:
    """The shard dies when one of a step's two pushes is there: only who sent it knows of it then."""
    shards = Shards(Setup(tmp_path, 0, quorum=2))
    try:
        stays, comes = shards.store(0), shards.store(1)
        begin_push(stays, 0, 1.0, clock=1)
        shards.kill(0)
        shards.bring_back(0)
        in_threads([stays.settle, lambda: push(comes, 1, 1.0, clock=1)])
        assert bool((stays.fetch(min_clock=1).wait().params == 1).all())
        stays.close()
        comes.close()
    finally:
        shards.stop()


def test_a_dead_worker_is_not_waited_for_by_a_shard_that_took_over(tmp_path: Path) -> None:
    """The worker dies while the shard is dead: its lock on the slots is gone."""
    shards = Shards(Setup(tmp_path, 0))
    try:
        stays, goes = shards.store(0), shards.store(1)
        push(goes, 0, 1.0, clock=1)
        shards.kill(0)
        goes.close()
        shards.bring_back(0)
        push(stays, 1, 1.0, clock=5)
        assert bool((stays.fetch(min_clock=5).wait().params == 2).all())
        stays.close()
    finally:
        shards.stop()
