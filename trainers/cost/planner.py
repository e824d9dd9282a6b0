"""Answers what a plan is asked for."""

from trainers.cost.plan import Plan, PlanRequest
from trainers.cost.planning import machines_of, make_plan, usual_counts
from trainers.cost.profiled import check_profile
from trainers.cost.search import search
from trainers.cost.workload import Workload
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec


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
    if request.cluster is None and request.profile is None:
        raise SpecRejected("cluster: there is neither a cluster nor a profile; describe one, or give a profile")
    machines = machines_of(spec, work, request.cluster, request.profile)
    workers = request.workers or usual_counts(spec, machines)
    plan = make_plan(spec, work, machines, workers, request.price)
    return plan.model_copy(update={"options": search(spec, work, machines, workers)}) if request.search else plan
