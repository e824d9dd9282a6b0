"""Which copy of a shard may serve, and which shard may go on without its copy: never both."""

from typing import Any

from tests.runtime.runs import spec
from trainers.runtime.copies import Copies, Copy
from trainers.runtime.crew import Crew


def copies() -> tuple[Copies, Any]:
    """Of shard 0, the copy; and the shard, which has sent it all."""
    found, shard = Copies(Crew("job", spec(), None), lambda level, message: None), object()
    found.of[0] = Copy(object(), "job/copy/0-1", "b", source=shard)
    return found, shard


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
    assert not found.parted(0, 0, "job/copy/0-1", "it is silent")


def test_a_shard_may_go_on_without_a_copy_that_was_given_up_before() -> None:
    found, _ = copies()
    assert found.parted(0, 0, "job/copy/0-0", "it is silent")
    assert 0 in found.of


def test_a_copy_that_its_shard_went_on_without_never_serves() -> None:
    found, shard = copies()
    ended: list[Copy] = []
    found.end = ended.append  # type: ignore[method-assign]
    found.crew.copies.append(found.of[0].actor)
    assert found.parted(0, 0, "job/copy/0-1", "it is silent")
    assert [copy.name for copy in ended] == ["job/copy/0-1"]
    found.depose(0)
    assert found.take(0, dead=shard) is None
