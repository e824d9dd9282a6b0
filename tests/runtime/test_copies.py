"""Which copy of a shard may serve, and which shard may go on without its copy: never both."""

import asyncio
from typing import Any

import pytest

from tests.runtime.runs import spec
from trainers.runtime.copies import Copies, Copy
from trainers.runtime.crew import Crew


def copies() -> tuple[Copies, Any]:
    """Of shard 0, the copy; and the shard, which has sent it all."""
    found, shard = Copies(Crew("job", spec(), None), lambda level, message: None), object()
    found.open({}, 0)
    found.of[0] = Copy(object(), "job/copy/0-1", "b", source=shard)
    return found, shard


def parted(found: Copies, reign: int, copy: str) -> bool:
    return asyncio.run(found.parted(0, reign, copy, "it is silent"))


def test_a_copy_serves_only_for_the_process_that_has_sent_it_all() -> None:
    found, shard = copies()
    assert found.take(0, dead=object()) is None
    assert found.take(1, dead=shard) is None
    taken = found.take(0, dead=shard)
    assert taken is not None
    assert taken.source is shard
    assert found.take(0, dead=shard) is None


def test_a_shard_in_whose_place_its_copy_serves_may_not_go_on_without_it() -> None:
    found, shard = copies()
    found.depose(0)
    assert found.take(0, dead=shard) is not None
    assert not parted(found, 0, "job/copy/0-1")


def test_a_shard_may_go_on_without_a_copy_that_was_given_up_before() -> None:
    found, _ = copies()
    assert parted(found, 0, "job/copy/0-0")
    assert 0 in found.of


def test_a_copy_that_its_shard_went_on_without_never_serves() -> None:
    found, shard = copies()
    ended: list[Copy] = []
    found.end = ended.append  # type: ignore[method-assign]
    found.crew.copies.append(found.of[0].actor)
    assert parted(found, 0, "job/copy/0-1")
    assert [copy.name for copy in ended] == ["job/copy/0-1"]
    found.depose(0)
    assert found.take(0, dead=shard) is None


@pytest.mark.timeout(30)
def test_a_coordinator_that_takes_over_answers_when_it_knows_which_process_of_a_shard_serves() -> None:
    """The shard was taken for dead twice before: whoever asks as its third process may go on, the second may not."""

    async def asks() -> list[bool]:
        found = Copies(Crew("job", spec(), None), lambda level, message: None)
        asked = [asyncio.create_task(found.parted(0, reign, "job/copy/0-5", "it is silent")) for reign in (2, 1)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in asked)
        found.open({0: 2}, 5)
        assert next(found.numbers) == 6
        return await asyncio.gather(*asked)

    assert asyncio.run(asks()) == [True, False]
