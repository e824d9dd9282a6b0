"""A shard's journal: what is read back, and what a full log becomes."""

import random
from pathlib import Path

import pytest
import torch

from trainers.errors import RunFailed
from trainers.optim.optimizer import Optimizer
from trainers.optim.update import SliceUpdate
from trainers.parameter_server import journal
from trainers.parameter_server.journal import ShardJournal
from trainers.parameter_server.memory import MemoryPlan, own_ring, read_journal, two_states
from trainers.parameter_server.push_identity import IdentitySet, PushIdentity
from trainers.parameter_server.shard import ReceivedPush, Shard, ShardConfig
from trainers.spec import MomentumSpec

NUMEL = 64 * 3


def make_shard(folder: Path, quorum: int = 0) -> Shard:
    """In mapped memory; as the memory is, or as it becomes by `begin`."""
    rule, plan = MomentumSpec(weight_decay=0).build(), MemoryPlan(folder, 0, 3, replicas=2)
    update = SliceUpdate(Optimizer(rule), NUMEL, torch.device("cpu"))
    config = ShardConfig(update, lambda seen: 0.1 / (1 + seen), quorum)
    states = two_states(plan, rule.state_names, NUMEL)
    return Shard(config, own_ring(plan, NUMEL), states, ShardJournal(folder / "journal", plan.capacity))


def begun(folder: Path, quorum: int = 0) -> Shard:
    shard, zeros = make_shard(folder, quorum), torch.zeros(NUMEL)
    shard.begin(zeros, dict.fromkeys(shard.state, zeros))
    return shard


def restored(folder: Path, quorum: int = 0) -> Shard:
    """What another process finds."""
    shard = make_shard(folder, quorum)
    left = read_journal(shard.journal)
    assert left is not None
    shard.restore(left)
    return shard


def arrive(number: int, clock: int = 0, worker: int = 0) -> ReceivedPush:
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(number))
    return ReceivedPush(worker, PushIdentity(number // 50, number % 50, number % 50), clock, 4, 1, values)


def alike(a: Shard, b: Shard) -> bool:
    numbers = [(s.version, s.examples, s.learning_rate, s.clocks, s.pinned, s.latest, s.before) for s in (a, b)]
    vectors = zip([a.params, *a.state.values()], [b.params, *b.state.values()], strict=True)
    sets = a.applied.to_json() == b.applied.to_json()
    return numbers[0] == numbers[1] and sets and all(torch.equal(x, y) for x, y in vectors)


def test_another_process_finds_the_shard_as_it_was(tmp_path: Path) -> None:
    dice, shard = random.Random(0), begun(tmp_path)
    for number in range(120):
        worker = dice.randrange(3)
        shard.join(worker)
        shard.push(arrive(number, number, worker))
        if dice.random() < 0.7:
            shard.apply()
        if dice.random() < 0.5:
            shard.pin(worker)
        if dice.random() < 0.1:
            shard.leave(worker)
        if not shard.ripe:
            assert alike(restored(tmp_path), shard)


def test_nothing_was_committed(tmp_path: Path) -> None:
    assert read_journal(make_shard(tmp_path).journal) is None


def test_a_full_log_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LEAST_ROWS", 16)
    shard = begun(tmp_path)
    numbers = list(range(300))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        shard.push(arrive(number))
        shard.apply()
        assert alike(restored(tmp_path), shard)
    assert all(restored(tmp_path).applied.minibatches(e) == set(range(50)) for e in range(6))
    assert len(list(tmp_path.glob("journal-log-*"))) == 1
    assert int(next(iter(tmp_path.glob("journal-log-*"))).name.rsplit("-", 1)[1]) > 1


def test_the_version_before_is_whole_until_the_next_update(tmp_path: Path) -> None:
    """So that a step can be taken back, also by another process, and done anew with the same bits."""
    shard, copies = begun(tmp_path, quorum=2), []
    for step in range(6):
        copies.append([shard.params.clone(), *(vector.clone() for vector in shard.state.values())])
        for number in (2 * step, 2 * step + 1):
            shard.push(arrive(number))
        (first, *_) = shard.apply()
        assert first.version == shard.version == step + 1
        newest = [shard.params.clone(), *(vector.clone() for vector in shard.state.values())]
        shard = restored(tmp_path, quorum=2)
        shard.prepare_generation(step)
        assert all(torch.equal(a, b) for a, b in zip(copies[-1], [shard.params, *shard.state.values()], strict=True))
        assert (shard.version, shard.examples) == (step, 8 * step)
        assert shard.applied.minibatches(0) == set(range(2 * step))
        with pytest.raises(RunFailed, match="cannot go back"):
            shard.prepare_generation(step - 1)
        for number in (2 * step + 1, 2 * step):
            shard.push(arrive(number))
        shard.apply()
        assert all(torch.equal(a, b) for a, b in zip(newest, [shard.params, *shard.state.values()], strict=True))


def test_nothing_goes_back_to_a_version_that_was_being_overwritten(tmp_path: Path) -> None:
    shard = begun(tmp_path)
    for number in range(2):
        shard.push(arrive(number))
        shard.apply()

    def dies(*_: object) -> None:
        raise InterruptedError

    shard.config.update.apply = dies  # type: ignore[method-assign,assignment]
    shard.push(arrive(2))
    with pytest.raises(InterruptedError):
        shard.apply()
    again = restored(tmp_path)
    assert again.version == 2
    with pytest.raises(RunFailed, match="cannot go back"):
        again.prepare_generation(1)


def test_identities_are_forgotten_in_the_middle_of_a_range() -> None:
    known = IdentitySet()
    known.add(PushIdentity(0, 0, 9))
    known.discard(PushIdentity(0, 3, 5))
    known.discard(PushIdentity(0, 20, 30))
    known.discard(PushIdentity(1, 0, 9))
    assert known.minibatches(0) == {0, 1, 2, 6, 7, 8, 9}
    assert PushIdentity(0, 3, 3) not in known
    known.add(PushIdentity(0, 3, 5))
    assert known.to_json() == [[0, 0, 0, 9]]
