"""A second copy of a shard: its files are, after each record, what the serving process wrote into its own."""

import random
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from socket import create_server

import pytest
import torch

from tests.contracts.groups import TIMEOUT_S
from tests.parameter_server.test_journal import NUMEL, alike, arrive, begun, make_shard, restored
from trainers.errors import PeerLost, Superseded
from trainers.links.rendezvous import Address
from trainers.parameter_server import journal
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.shard import Shard
from trainers.parameter_server.standby import ReplicatedJournal, Replicator, StandbyShard

TOKEN = secrets.randbits(62)


def pieces_of(shard: Shard) -> dict[int, GroupSlice]:
    return {0: GroupSlice(slice(0, NUMEL), shard)}


def never(why: str) -> bool:
    raise AssertionError(f"the copy is missed: {why}")


@contextmanager
def copying(folder: Path, quorum: int = 0) -> Iterator[tuple[StandbyShard, Address]]:
    """A copy that listens, in this process."""
    folder.mkdir(exist_ok=True)
    listener = create_server(("127.0.0.1", 0))
    copy = StandbyShard(listener, TOKEN, pieces_of(make_shard(folder, quorum)))
    thread = threading.Thread(target=copy.follow, daemon=True)
    thread.start()
    try:
        yield copy, listener.getsockname()
    finally:
        copy.end()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def ship(shard: Shard, address: Address, released: Callable[[str], bool] = never) -> Replicator:
    replicator = Replicator(address, TOKEN, pieces_of(shard), released, TIMEOUT_S)
    replicator.begin()
    return replicator


def same(folder: Path, shard: Shard, quorum: int = 0) -> bool:
    """Whether a process that finds the copy's files goes on as one that finds the shard's; nobody reads a row there."""
    found = restored(folder, quorum)
    assert not found.pinned
    if shard.before is not None:
        assert found.before is not None
        assert torch.equal(found.ring[found.before.row], shard.ring[shard.before.row])
        found.before = replace(found.before, logged=shard.before.logged)  # each merges its log when it is full
    found.before, found.pinned = found.before if shard.before else None, dict(shard.pinned)
    return alike(found, shard)


def test_after_each_record_the_copy_has_the_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through joins, leaves, full logs that are merged, and new connections in the middle."""
    monkeypatch.setattr(journal, "LEAST_ROWS", 16)
    (tmp_path / "own").mkdir()
    dice, shard = random.Random(0), begun(tmp_path / "own")
    for number in range(5):
        shard.push(arrive(number))
        shard.apply()
    with copying(tmp_path / "copy") as (_, address):
        replicator = ship(shard, address)
        assert same(tmp_path / "copy", shard)
        numbers = list(range(5, 250))
        dice.shuffle(numbers)
        for clock, number in enumerate(numbers):
            worker = dice.randrange(3)
            shard.join(worker)
            shard.push(arrive(number, clock, worker))
            if dice.random() < 0.7:
                shard.apply()
            if dice.random() < 0.5:
                shard.pin(worker)
            if dice.random() < 0.1:
                shard.leave(worker)
            if dice.random() < 0.02:
                replicator.line.close()
                replicator = ship(shard, address)
            if not shard.ripe:
                assert same(tmp_path / "copy", shard)
    shard.apply()
    assert int(next(iter((tmp_path / "copy").glob("journal-log-*"))).name.rsplit("-", 1)[1]) > 1


def test_a_step_that_is_taken_back_and_made_anew_is_sent_again(tmp_path: Path) -> None:
    """With other bits than before, in the same row."""
    (tmp_path / "own").mkdir()
    shard = begun(tmp_path / "own", quorum=2)
    with copying(tmp_path / "copy", quorum=2) as (_, address):
        ship(shard, address)
        for step in range(6):
            for attempt in range(2):
                for part in (0, 1):
                    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(2 * step + attempt))
                    shard.push(replace(arrive(2 * step + part), gradient=values))
                (first, *_) = shard.apply()
                assert first.version == step + 1
                assert same(tmp_path / "copy", shard, quorum=2)
                if not attempt:
                    shard.prepare_generation(step)
                    assert same(tmp_path / "copy", shard, quorum=2)


def test_a_copy_whose_connection_breaks_in_the_middle_of_a_version_has_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    shard = begun(tmp_path / "own")
    with copying(tmp_path / "copy") as (copy, address):
        replicator = ship(shard, address, lambda why: True)
        for number in range(3):
            shard.push(arrive(number))
            shard.apply()
        ring, numbers = replicator.line.send, []

        def breaks(message: bytes, vector: torch.Tensor | None = None) -> None:
            """When the row has gone out, and of the state a half."""
            numbers.append(len(message))
            if numbers[-2:] == [0, 0] and vector is not None:
                vector = vector[: NUMEL // 2]
            ring(message, vector)
            if numbers[-2:] == [0, 0]:
                replicator.line.finish(TIMEOUT_S)

        replicator.line.send = breaks  # type: ignore[method-assign]
        shard.push(arrive(3))
        (applied,) = shard.apply()
        assert applied.version == 4  # it has gone on without the copy
        assert not isinstance(shard.journal, ReplicatedJournal)
        copy.end()
        assert restored(tmp_path / "copy").version == 3
        assert restored(tmp_path / "own").version == 4


def test_a_shard_goes_on_without_a_silent_copy_once_it_may(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    shard, reasons = begun(tmp_path / "own"), list[str]()
    with copying(tmp_path / "copy") as (copy, address):
        take, heard = copy._take, threading.Event()

        def released(why: str) -> bool:
            reasons.append(why)
            return True

        def deaf(*arguments: object) -> None:
            heard.wait(TIMEOUT_S)
            take(*arguments)  # type: ignore[arg-type]

        replicator = ship(shard, address, released)
        replicator.line.set_timeout(0.2)
        copy._take = deaf  # type: ignore[method-assign]
        for number in range(3):
            shard.push(arrive(number))
            assert len(shard.apply()) == 1
        heard.set()
        assert [why.partition(" for ")[0] for why in reasons] == ["the copy says nothing"]
        assert restored(tmp_path / "own").version == 3


def test_whoever_has_a_copy_that_serves_acknowledges_nothing_more(tmp_path: Path) -> None:
    """Even if it were told that it may."""
    (tmp_path / "own").mkdir()
    shard = begun(tmp_path / "own")
    with copying(tmp_path / "copy") as (copy, address):
        ship(shard, address, lambda why: True)
        shard.push(arrive(0))
        assert len(shard.apply()) == 1
        copy.end()
        for number in (1, 2):
            shard.push(arrive(number))
            with pytest.raises(Superseded):
                shard.apply()
        assert restored(tmp_path / "copy").version == 1
        with pytest.raises(PeerLost):
            ship(shard, address)


def test_only_who_knows_the_token_is_heard(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    shard = begun(tmp_path / "own")
    with copying(tmp_path / "copy") as (copy, address):
        copy.token += 1
        with pytest.raises(PeerLost):
            ship(shard, address)
        assert not isinstance(shard.journal, ReplicatedJournal)
