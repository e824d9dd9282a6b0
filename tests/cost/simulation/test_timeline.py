"""What a simulation tells beside the rate: a step as it passes, what the slowest costs, who stands beside a shard."""

from typing import Any

import numpy as np
import pytest

from tests.cost.simulation.test_simulate import clients, pace
from tests.cost.test_planning import planned, profile_of, slow, spec_of
from trainers.cost.plan import Timed
from trainers.cost.plan_table import PlanTable
from trainers.cost.simulation.clients import run
from trainers.cost.simulation.simulated import Simulated
from trainers.cost.simulation.timeline import Timeline, Track, as_text, chosen, track


def simulated(*workers: int, spread_s: float = 0.0, algorithm: Any = "sync", **fields: Any) -> list[Simulated]:
    """Of each number of workers, on a machine with as many cores."""
    spec = spec_of(algorithm=algorithm, **fields)
    profile = profile_of(spec, cores=max(workers), forward=Timed(median_s=0.01, spread_s=spread_s))
    plan = planned(spec, *workers, cluster=None, profile=profile, simulate=len(workers))
    found = [each.simulated for each in plan.candidates]
    assert all(found)
    return [one for one in found if one is not None]


def workers_of(timeline: Timeline) -> list[Track]:
    return [one for one in timeline.tracks if one.who.startswith(("worker", "group"))]


def seconds_of(row: Track, *kinds: str) -> float:
    return sum(span.end_s - span.begin_s for span in row.spans if span.what in kinds)


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        ("sync", 1),
        ({"name": "sync", "reduction": "fast"}, 1),
        ({"name": "sync", "form": "parameter_server"}, 1),
        ({"name": "parallel_sgd", "average_every": 5}, 5),
        ({"name": "diloco", "average_every": 6, "fragments": 3, "delay": 1}, 2),
        ("admm", 1),
    ],
    ids=str,
)
def test_without_a_spread_a_step_is_as_long_as_the_closed_forms_have_it(algorithm: Any, steps: int) -> None:
    (each,) = planned(spec_of(algorithm=algorithm), 8, simulate=1).candidates
    assert each.simulated is not None
    found = each.simulated.timeline
    assert (found.steps, found.seconds) == (steps, pytest.approx(steps * each.step_s, rel=1e-6))
    rows = workers_of(found)
    assert len(rows) == 8
    for row in rows:  # from the beginning to the end, without a gap
        edges = [0.0, *(edge for span in row.spans for edge in (span.begin_s, span.end_s)), found.seconds]
        assert edges[::2] == pytest.approx(edges[1::2], abs=1e-9)
    links = next(row for row in found.tracks if row.who == "links")
    assert seconds_of(links, *found.kinds) == pytest.approx(
        steps * sum(e.total_s for e in each.exchanges if e.name != "shards' updates"), rel=1e-6
    )


def test_all_but_the_slowest_wait_for_it() -> None:
    (found,) = simulated(8, spread_s=0.003)
    waits = sorted(seconds_of(row, "waits") for row in workers_of(found.timeline))
    assert waits[0] == 0.0
    assert waits[1] > 0.0
    late = found.stragglers
    assert late is not None
    assert (late.of, late.mean_s) == (8, pytest.approx(found.waiting_s))
    assert 0 < late.without_one_s < late.mean_s
    assert list(late.quantiles_s) == sorted(late.quantiles_s)
    assert late.quantiles_s[1] < late.mean_s < late.quantiles_s[-2]


def test_backup_workers_take_away_what_the_slowest_cost() -> None:
    """That is what `without_one_s` says beforehand."""
    shards = {"name": "sync", "form": "parameter_server"}
    (all_,) = simulated(8, spread_s=0.003, algorithm=shards)
    (but_one,) = simulated(8, spread_s=0.003, algorithm=shards | {"backup": 1})
    assert all_.stragglers is not None
    assert but_one.stragglers is not None
    assert but_one.stragglers.mean_s == pytest.approx(all_.stragglers.without_one_s)
    dropped = [row for row in workers_of(but_one.timeline) if seconds_of(row, "not waited for")]
    assert len(dropped) == 1


def test_workers_that_go_on_by_themselves_share_the_shard() -> None:
    (found,) = simulated(4, spread_s=0.003, algorithm="downpour")
    for row in workers_of(found.timeline):
        assert seconds_of(row, "computing") == pytest.approx(0.03, rel=0.5)
        assert seconds_of(row, "fetch", "push") > 0
        assert seconds_of(row, *found.timeline.kinds) == pytest.approx(found.timeline.seconds, rel=0.3)
    (shard,) = [row for row in found.timeline.tracks if row.who == "the fullest shard"]
    assert 0 < seconds_of(shard, "serves one", "serves several") <= found.timeline.seconds
    assert found.stragglers is None
    assert sum(found.staleness.values()) == pytest.approx(1.0)
    assert found.staleness_at(0.05) <= found.mean_staleness <= found.staleness_at(0.95)


def test_a_group_waits_for_its_slowest_member() -> None:
    (found,) = simulated(8, spread_s=0.003, algorithm={"name": "mixed", "group": 4})
    assert found.stragglers is not None
    assert found.stragglers.of == 4
    assert [row.who for row in workers_of(found.timeline)] == ["group 0", "group 1"]


def test_of_many_workers_some_are_shown() -> None:
    found = run(clients(100), pace(0.1, spread=0.1), 20, np.random.default_rng(0)).timeline
    assert found is not None
    assert len(workers_of(found)) == 12
    assert found.left_out == 88
    assert chosen(100)[0] == 0
    assert chosen(100)[-1] == 99


def test_who_stands_beside_a_shard_does_not_load_it() -> None:
    """Two nodes with a client and a shard each; the second shard has half as much to do. A client's visit ends when the
    other node's shard is through, and nobody else is there."""
    two = clients(2, shards=(1.0, 0.5), nodes=2, beside=0.0, fetch_s=0.2, push_s=0.0)
    ran = run(two, pace(0.1), 50, np.random.default_rng(0))
    quickest, other = 0.1 + 0.5 * 0.2, 0.1 + 0.2
    assert len(ran.ends_s) == pytest.approx(50 + 50 * quickest / other, abs=2)
    assert ran.waiting_s == pytest.approx(0.0, abs=1e-9)


def test_a_visit_ends_when_the_last_shard_is_through() -> None:
    """Nobody beside a shard: of several shards the fullest decides."""
    one = run(clients(3), pace(0.1, spread=0.2), 100, np.random.default_rng(0))
    several = run(clients(3, shards=(1.0, 0.9, 0.2)), pace(0.1, spread=0.2), 100, np.random.default_rng(0))
    assert several.ends_s == pytest.approx(one.ends_s)


def test_shards_on_the_workers_nodes_are_no_slower_than_elsewhere() -> None:
    def rate(location: str) -> float:
        spec = spec_of(algorithm="downpour", ps={"shards": 3, "placement": "round_robin", "location": location})
        (each,) = planned(spec, 8, cluster=slow(), simulate=1).candidates
        assert each.simulated is not None
        return each.simulated.examples_per_s

    assert rate("with_workers") >= rate("own")


def test_a_timeline_as_text() -> None:
    rows = (
        track("worker 0", [("computing", 10.0, 13.0), ("waits", 13.0, 14.0), ("exchanges", 14.0, 18.0)], 10.0, 8.0),
        track("links", [("gradients", 14.0, 16.0), ("gradients", 16.0, 18.0)], 10.0, 8.0),
    )
    assert len(rows[1].spans) == 1
    assert list(as_text(Timeline(seconds=8.0, steps=1, tracks=rows), columns=8)) == [
        "worker 0 |###.====|",
        "links    |    ++++|",
        "         0 to 8e+03 ms: # computing, = exchanges, + gradients, . waits",
    ]


def test_markdown_has_the_stragglers_the_staleness_and_the_step() -> None:
    spec = spec_of(algorithm={"name": "mixed", "group": 4})
    profile = profile_of(spec, cores=8, forward=Timed(median_s=0.01, spread_s=0.003))
    text = PlanTable(planned(spec, 8, cluster=None, profile=profile, simulate=1)).markdown
    assert "The slowest of 4 costs " in text
    assert "of nine pushes in ten" in text
    assert "## A step of 8 workers\n\n```text\ngroup 0 " in text
