"""Answers what a plan is asked for."""

from itertools import accumulate

from trainers.cost.plan import Candidate, Plan, PlanRequest
from trainers.cost.planning import Machines, fleet_of, machines_of, make_plan, step_of, usual_counts
from trainers.cost.profiled import check_profile
from trainers.cost.search import search
from trainers.cost.simulation.simulated import STEPS
from trainers.cost.workload import Workload
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec

MOST_STEPS = 256_000
"""Of all simulated workers together."""


def plan_spec(spec: TrainSpec, request: PlanRequest) -> Plan:
    """Count the spec's model and plan it. The request has a cluster or a profile, or both.

    Raises:
        SpecRejected: As `make_plan`, and as in a run for data, task or model.
    """
    from trainers.cost.counting import count_workload  # torch

    if request.profile is not None:
        check_profile(spec, request.profile)  # before counting, which may take seconds
    return plan_work(spec, count_workload(spec), request)


def plan_work(spec: TrainSpec, work: Workload, request: PlanRequest) -> Plan:
    """Plan a spec whose model has been counted. Imports no torch.

    Raises:
        SpecRejected: As `make_plan`; or the request has neither a cluster nor a profile.
    """
    if request.workers is not None and request.nodes is not None:
        raise SpecRejected("nodes: numbers of workers are given too; leave one of the two out")
    if request.cluster is None and request.profile is None:
        raise SpecRejected("cluster: there is neither a cluster nor a profile; describe one, or give a profile")
    if request.profile is not None:
        work = work.model_copy(update={"seconds": request.profile.layers, "rows": request.profile.rows})
    machines = machines_of(spec, work, request)
    workers = request.workers or _on_nodes(request, machines) or usual_counts(spec, machines)
    plan = make_plan(spec, work, machines, workers, request.price)
    if request.simulate:
        plan = plan.model_copy(update={"candidates": _simulated(spec, work, machines, plan, request.simulate)})
    return plan.model_copy(update={"options": search(spec, work, machines, workers)}) if request.search else plan


def _on_nodes(request: PlanRequest, machines: Machines) -> tuple[int, ...] | None:
    """Workers that fill so many nodes; None where none were asked for.

    Raises:
        SpecRejected: There are not so many, or what is planned on is one machine.
    """
    if request.nodes is None:
        return None
    if request.cluster is None and request.links is None:
        raise SpecRejected("nodes: a profile is of one machine; give a cluster, or links that were measured")
    filled = list(accumulate(machines.cluster.sizes))
    if max(request.nodes) > len(filled):
        raise SpecRejected(f"nodes: {machines.cluster.name} has {len(filled)} nodes, not {max(request.nodes)}")
    return tuple(filled[number - 1] for number in request.nodes)


def _simulated(spec: TrainSpec, work: Workload, machines: Machines, plan: Plan, number: int) -> tuple[Candidate, ...]:
    """The plan's candidates, the recommended one and the fastest others with what a simulation says."""
    from trainers.cost.simulation.simulate import simulate  # SimPy

    best = sorted(plan.candidates, key=lambda each: (each.workers != plan.recommended, -each.examples_per_s))
    found = dict[int, Candidate]()
    for each in best[:number]:
        fleet = fleet_of(spec, machines, [each.workers])
        step = step_of(spec, work, machines.pace, fleet)
        steps = max(20, min(STEPS, MOST_STEPS // each.workers))
        simulated = simulate(spec, work, machines.pace, fleet, step, seed=spec.seed, steps=steps)
        found[each.workers] = each.model_copy(update={"simulated": simulated})
    return tuple(found.get(each.workers, each) for each in plan.candidates)
