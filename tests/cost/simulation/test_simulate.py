"""Simulated runs: equal to the closed forms where these are exact, and to themselves with the same seed."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.test_planning import planned, profile_of, spec_of
from trainers.cost.plan import Timed
from trainers.cost.schedules.repairman import response_s
from trainers.cost.simulation.clients import Clients, run
from trainers.cost.workload import Pace


def pace(seconds: float, spread: float = 0.0) -> Pace:
    return Pace(forward_s=seconds / 3, backward_s=seconds * 2 / 3, update_s=0.0, data_s=0.0, spread=spread)


def clients(count: int, **changes: Any) -> Clients:
    return Clients(**{"slowness": np.ones((count, 1)), "fixed_s": 0.0, "fetch_s": 0.01, "push_s": 0.01} | changes)


@pytest.mark.parametrize(
    "algorithm",
    [
        "sync",
        "parallel_sgd",
        "diloco",
        {"name": "diloco", "average_every": 6, "fragments": 3, "delay": 1},
        "admm",
        {"name": "sync", "reduction": "fast"},
        {"name": "sync", "form": "parameter_server"},
        "hybrid",
        "spatial",
    ],
)
def test_without_spread_all_that_waits_for_all_is_as_in_the_closed_forms(algorithm: Any) -> None:
    spec = spec_of(algorithm=algorithm, **({"model": "lenet5"} if algorithm in ("hybrid", "spatial") else {}))
    for each in planned(spec, 1, 2, 8, simulate=3).candidates:
        assert each.simulated is not None
        assert each.simulated.examples_per_s == pytest.approx(each.examples_per_s, rel=1e-6)


@pytest.mark.parametrize(
    "algorithm",
    [
        "downpour",
        {"name": "downpour", "push": "delta", "steps": 4},
        {"name": "mixed", "group": 1, "push": "delta", "steps": 4},
        {"name": "easgd", "tau": 4},
    ],
    ids=str,
)
def test_one_worker_of_downpour_is_as_in_the_closed_forms(algorithm: Any) -> None:
    one = planned(spec_of(algorithm=algorithm), 1, simulate=1).of(1)
    assert one.simulated is not None
    assert one.simulated.examples_per_s == pytest.approx(one.examples_per_s, rel=0.01)
    assert one.simulated.staleness == {0: 1.0}


@pytest.mark.parametrize("count", [2, 4, 16])
def test_the_repairmans_model(count: int) -> None:
    """Fairly shared, its mean does not depend on the distribution of the computing times."""
    ran = run(clients(count), pace(0.1, spread=0.3), 1500, np.random.default_rng(1))
    expected = 0.1 + float(response_s(np.array([count]), np.array([0.1]), np.array([0.02]))[0])
    assert ran.ends_s[-1] / len(ran.ends_s) * count == pytest.approx(expected, rel=0.02)


def test_a_push_that_no_fetch_follows_passes_while_a_worker_computes() -> None:
    """Every 2 minibatches of 100 ms a fetch and a push of 10 ms; whoever fetches first computes on meanwhile."""
    each = {"num_fetch": 2, "num_push": 2}
    for first, cycle in ((True, 0.21), (False, 0.22)):
        ran = run(clients(1, fetches_first=first, **each), pace(0.1), 400, np.random.default_rng(0))
        assert ran.ends_s[-1] / len(ran.ends_s) * 2 == pytest.approx(cycle, rel=0.005)
        assert ran.staleness.total() > 190
        assert set(ran.staleness) == {0}
    every = run(clients(1, num_fetch=4), pace(0.1), 400, np.random.default_rng(0))  # three pushes of four are hidden
    assert every.ends_s[-1] / len(every.ends_s) * 4 == pytest.approx(0.42, rel=0.005)


@pytest.mark.parametrize("config", [{"average_every": 10}, {"average_every": 1}])
def test_what_workers_are_late_in_evens_out_between_two_averages(config: dict[str, int]) -> None:
    spec = spec_of(algorithm={"name": "diloco", **config})
    uneven = profile_of(spec, cores=8, forward=Timed(median_s=0.01, spread_s=0.003))
    (each,) = planned(spec, 8, cluster=None, profile=uneven, simulate=1).candidates
    assert each.simulated is not None
    assert each.simulated.waiting_s == pytest.approx(each.waiting_s, rel=0.1)
    assert each.simulated.examples_per_s == pytest.approx(each.examples_per_s, rel=0.02)


def test_the_same_seed_tells_the_same_and_another_does_not() -> None:
    def ends(seed: int) -> list[float]:
        return run(clients(4), pace(0.1, spread=0.2), 50, np.random.default_rng(seed)).ends_s

    assert ends(1) == ends(1) != ends(2)


def test_a_bound_on_staleness_holds_a_straggler_s_others_back() -> None:
    slow = np.array([[1.0], [1.0], [4.0]])
    free = run(clients(3, slowness=slow), pace(0.1), 200, np.random.default_rng(0))
    bound = run(clients(3, slowness=slow, max_staleness=2), pace(0.1), 200, np.random.default_rng(0))
    assert bound.waiting_s > free.waiting_s
    assert len(bound.ends_s) / bound.ends_s[-1] < len(free.ends_s) / free.ends_s[-1]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(1, 8), st.floats(0.01, 0.2), st.floats(0.001, 0.1), st.floats(1.1, 4.0), st.booleans()
)  # fmt: skip
def test_nothing_faster_slows_a_simulated_run(
    count: int, computing: float, busy: float, factor: float, device: bool
) -> None:
    def ended(think: float, visit: float) -> float:
        ran = run(clients(count, fetch_s=visit, push_s=visit), pace(think), 40, np.random.default_rng(0))
        return ran.ends_s[-1] / len(ran.ends_s)

    faster = ended(computing / factor, busy) if device else ended(computing, busy / factor)
    assert faster <= ended(computing, busy) * (1 + 1e-6)


@pytest.mark.parametrize("cores", [2, 8])
def test_a_spread_makes_a_synchronous_run_wait_as_the_closed_forms_have_it(cores: int) -> None:
    """On cores of their own, and on two that they share."""
    spec = spec_of()
    uneven = profile_of(spec, cores=cores, forward=Timed(median_s=0.01, spread_s=0.002))
    found = planned(spec, 2, 8, cluster=None, profile=uneven, simulate=2)
    for each in found.candidates:
        assert each.simulated is not None
        assert each.simulated.waiting_s > 0
        assert each.simulated.examples_per_s == pytest.approx(each.examples_per_s, rel=0.05)
