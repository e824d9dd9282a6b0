"""Which standby of a shard may serve, and which shard may go on without its standby: never both."""

import asyncio
from typing import Any

import pytest

from tests.runtime.control.fakes import FakeLog
from tests.runtime.runs import spec
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.standbys import Standby, Standbys


def standbys() -> Standbys:
    """Of a run on one node, none of whose shards has a standby yet."""
    return Standbys(ActorPool("job", spec(), None, None), FakeLog())


def filled() -> tuple[Standbys, Any]:
    """With one of shard 0; and that shard, which has sent it everything."""
    found, shard = standbys(), object()
    found.open({}, 0)
    found.by_shard[0] = Standby(object(), "job/standby/0-1", "b", source=shard)
    return found, shard


def is_released(found: Standbys, incarnation: int, name: str) -> bool:
    return asyncio.run(found.release(0, incarnation, name, "it is silent"))


def test_a_standby_serves_only_for_the_process_that_has_sent_it_everything() -> None:
    found, shard = filled()
    assert found.take(0, dead=object()) is None
    assert found.take(1, dead=shard) is None
    taken = found.take(0, dead=shard)
    assert taken is not None
    assert taken.source is shard
    assert found.take(0, dead=shard) is None


def test_a_shard_in_whose_place_its_standby_serves_may_not_go_on_without_it() -> None:
    found, shard = filled()
    found.depose(0)
    assert found.take(0, dead=shard) is not None
    assert not is_released(found, 0, "job/standby/0-1")


def test_a_shard_may_go_on_without_a_standby_that_was_given_up_before() -> None:
    found, _ = filled()
    assert is_released(found, 0, "job/standby/0-0")
    assert 0 in found.by_shard


def test_a_standby_that_its_shard_went_on_without_never_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    found, shard = filled()
    ended: list[Any] = []
    monkeypatch.setattr(found.pool, "let_standby_go", ended.append)
    actor = found.by_shard[0].actor
    assert is_released(found, 0, "job/standby/0-1")
    assert ended == [actor]
    found.depose(0)
    assert found.take(0, dead=shard) is None


@pytest.mark.timeout(30)
def test_a_coordinator_that_takes_over_answers_when_it_knows_which_process_of_a_shard_serves() -> None:
    """The shard was taken for dead twice before: its third process may go on, the second may not."""

    async def asks() -> list[bool]:
        found = standbys()
        asked = [
            asyncio.create_task(found.release(0, incarnation, "job/standby/0-5", "it is silent"))
            for incarnation in (2, 1)
        ]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in asked)
        found.open({0: 2}, 5)
        assert next(found.numbers) == 6
        return await asyncio.gather(*asked)

    assert asyncio.run(asks()) == [True, False]
