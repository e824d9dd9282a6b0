"""Nodes with a shard that are lost, and copies that are: no acknowledged update is lost, none is applied twice."""

import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.contracts.groups import rendezvous_for
from tests.contracts.shards import begin_push, push
from tests.faults.copy_process import Nodes
from tests.faults.test_shard_deaths import WORKERS, train
from trainers.parameter_server.push_identity import IdentitySet


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with rendezvous_for("process_group") as rendezvous:
        assert rendezvous is not None
        found = Nodes(tmp_path, rendezvous.port)
        try:
            yield found
        finally:
            found.stop()


def check(nodes: Nodes, acknowledged: list[int]) -> None:
    """Everywhere the sum is the number of identities that were applied, and those are what was acknowledged; the copy
    has what the shard has."""
    for node in (nodes.other, nodes.serving, nodes.copy):
        node.killed()
        left, params = node.left()
        assert IdentitySet.from_json(left.rows).minibatches(0) == set(acknowledged)
        assert left.record.newest.number == left.record.newest.examples == len(acknowledged)
        assert torch.equal(params, torch.full_like(params, len(acknowledged)))


@pytest.mark.parametrize("losses", [9, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.long
def test_nodes_lost_at_any_time_lose_nothing(nodes: Nodes, losses: int) -> None:
    """The shard's in turn with its copy's, and with a copy that is only silent, each at a random moment."""
    dice, timers = random.Random(losses), list[threading.Timer]()
    reasons = list[str]()

    def silence() -> None:
        """It says nothing until its shard has gone on without it, for one more worker if for no other."""
        nodes.serving.order("be impatient")
        nodes.copy.stopped()
        nodes.store(WORKERS + len(reasons)).close()
        reasons.append((nodes.serving.setup.folder / "released").read_text())
        nodes.lose_copy()

    kinds = [nodes.lose_serving, nodes.lose_copy, silence]

    def before_push(number: int) -> None:
        if number % 8 != 5 or len(timers) == losses:
            return
        for timer in timers:
            timer.join()
        timers.append(threading.Timer(dice.uniform(0, 0.01), kinds[len(timers) % 3]))
        timers[-1].start()

    acknowledged = train(nodes, 8 * losses + 40, before_push)
    for timer in timers:
        timer.join()
    assert len(timers) == losses
    assert acknowledged == list(range(8 * losses + 40))
    assert {why.partition(" for ")[0] for why in reasons} == {"the copy says nothing"}
    check(nodes, acknowledged)


def test_a_shard_that_was_taken_for_lost_and_wakes_up_serves_nobody(nodes: Nodes) -> None:
    """Not even with leave to go on without its copy: that serves."""
    store = nodes.store(0)
    push(store, 0, 1.0, clock=1)
    old = nodes.serving
    old.order("be impatient")
    old.stopped()
    wait = begin_push(store, 1, 1.0, clock=2)
    nodes.promote()
    old.send(signal.SIGCONT)
    wait()
    for number in range(2, 5):
        push(store, number, 1.0, clock=number + 1)
    params = store.fetch(5).wait().params
    assert bool((params == 5).all())
    store.close()
    old.killed()
    left, params = old.left()
    assert left.record.newest.number <= 2  # written down, and not acknowledged to anybody
    nodes.serving.killed()
    left, params = nodes.serving.left()
    assert IdentitySet.from_json(left.rows).minibatches(0) == set(range(5))
    assert torch.equal(params, torch.full_like(params, 5))
