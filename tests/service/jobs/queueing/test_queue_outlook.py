"""Why a job waits, in which place, and about how long."""

from collections.abc import Sequence

import pytest

from service.jobs.queueing.claims import Claim, Quotas
from service.jobs.queueing.policy import decide
from service.jobs.queueing.queue_outlook import LOOKAHEAD, Outlook, far_behind, outlooks
from service.jobs.queueing.rules import Rules
from trainers import Resources


def claim(name: str, cpus: float, gpus: float = 0.0, user: str = "local", priority: int = 0) -> Claim:
    return Claim(name, user, priority, Resources(cpus, gpus))


def look(
    line: list[Claim],
    held: Sequence[tuple[Claim, float | None]],
    free: float | Resources = 0.0,
    rules: Rules | None = None,
    shrinking: tuple[str, ...] = (),
) -> dict[str, Outlook]:
    rules, room = rules or Rules(), Resources(free, 0.0) if isinstance(free, float) else free
    decision = decide(line, [one for one, _ in held], (Resources(10, 2), room), rules)
    return outlooks(decision, held, room, rules.shares, shrinking)


def test_the_first_waits_for_those_whose_ends_make_room() -> None:
    held = [(claim("a", 2), 500.0), (claim("b", 1), 30.0), (claim("c", 4), None)]
    found = look([claim("x", 2)], held)["x"]
    assert found.message == "first in the queue: waits for 2 CPUs held by job a and 1 other, about 9 min"
    assert (found.position, found.reason, found.starts_in_s) == (1, "WaitsForResources", 500.0)
    assert look([claim("x", 1)], held)["x"].message == "first in the queue: waits for 1 CPU held by job b, about 30 s"
    found = look([claim("x", 7)], held)["x"]  # nobody knows when c ends
    assert found.message == "first in the queue: waits for 7 CPUs held by job c and 2 others"
    assert found.starts_in_s is None
    found = look([claim("x", 9)], held)["x"]
    assert found.message == "first in the queue: waits for 9 CPUs held by others on the cluster"


def test_what_is_free_counts() -> None:
    held = [(claim("a", 2, 1), 60.0)]
    found = look([claim("x", 3, 1)], held, Resources(1, 0))["x"]
    assert found.message == "first in the queue: waits for 2 CPUs and 1 GPU held by job a, about 1 min"
    assert look([claim("x", 3)], held, free=3.0)["x"].message == "first in the queue: starts next"


def test_whoever_stands_behind_waits_for_the_first() -> None:
    held = [(claim("a", 2), 60.0), (claim("b", 2), 7200.0)]
    found = look([claim("x", 2), claim("y", 2), claim("z", 1)], held)
    assert found["y"].message == "number 2 in the queue: waits behind job x, about 2 h"
    assert (found["y"].reason, found["y"].starts_in_s) == ("WaitsInLine", 7200.0)
    assert found["z"].message == "number 3 in the queue: waits behind job x"  # x and y have not even begun
    assert found["z"].starts_in_s is None


def test_the_line_goes_by_priority_then_by_time() -> None:
    claims = [claim("b", 1), claim("c", 1, priority=5), claim("a", 1), claim("d", 1, priority=-1)]
    assert [one.job_id for one in sorted(claims, key=lambda one: one.rank)] == ["c", "a", "b", "d"]


def test_a_limit_of_ones_own_holds_up_nobody_else() -> None:
    held = [(claim("a", 1, user="ada"), 60.0)]
    line = [claim("x", 1, user="ada"), claim("y", 3, user="bob")]
    found = look(line, held, 3.0, Rules(Quotas(running_jobs=1)))
    assert found["x"].reason == "UserLimit"
    assert found["x"].message == "first in the queue: waits, since ada may run 1 job at once"
    assert found["y"].message == "number 2 in the queue: starts next"


def test_who_gives_way_is_named() -> None:
    found = look([claim("x", 2)], [(claim("a", 2), 60.0)], shrinking=("a",))["x"]
    assert "held by job a; job a gives way" in found.message


@pytest.mark.parametrize(
    ("quotas", "told"),
    [
        (Quotas(), None),
        (Quotas(running_jobs=2), None),
        (Quotas(running_jobs=1), "ada may run 1 job at once"),
        (Quotas(cpus=4), None),
        (Quotas(cpus=3), "ada may hold 3 CPUs at once"),
        (Quotas(gpus=0), "ada may hold 0 GPUs at once"),
    ],
)
def test_limits(quotas: Quotas, told: str | None) -> None:
    held = [claim("a", 2, user="ada"), claim("b", 9, 9, user="bob")]
    assert quotas.refuses(claim("x", 2, 1 if quotas.gpus is not None else 0, user="ada"), held) == told


def test_of_a_long_line_only_the_beginning_is_looked_through() -> None:
    line = [claim(f"{n:05d}", 1) for n in range(10_000)]
    found = look(line, [(claim("a", 2), 60.0)])
    assert list(found) == [one.job_id for one in line[:LOOKAHEAD]]
    assert far_behind(LOOKAHEAD + 6).message == f"number {LOOKAHEAD + 6} in the queue: waits for those before it"
