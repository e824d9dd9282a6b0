"""Makes a plan: the closed forms of a spec's algorithm, over all numbers of workers at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from trainers.algorithms.admm.config import AdmmConfig
from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.diloco.config import DilocoConfig
from trainers.algorithms.divided import Divided
from trainers.algorithms.downpour.config import DownpourConfig
from trainers.algorithms.easgd.config import EasgdConfig
from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.mixed.config import MixedConfig
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.algorithms.spatial.config import SpatialConfig
from trainers.algorithms.sync.config import SyncConfig
from trainers.cost.clusters.cluster import Cluster
from trainers.cost.clusters.links import cluster_of_links
from trainers.cost.plan import Candidate, Plan, PlannedExchange, PlanRequest, recommended
from trainers.cost.profiled import between, check_profile, machine_of, pace_of_profile
from trainers.cost.schedules.asynchronous import Visits, downpour_step, easgd_step, mixed_step, rhythm_of
from trainers.cost.schedules.fleet import Fleet, Floats, Ints
from trainers.cost.schedules.hybrid import hybrid_step
from trainers.cost.schedules.repairman import corner
from trainers.cost.schedules.shares import fullest_share
from trainers.cost.schedules.spatial import spatial_step
from trainers.cost.schedules.step import Step
from trainers.cost.schedules.synchronous import admm_step, diloco_step, parallel_sgd_step, sync_step
from trainers.cost.staleness import staleness_of
from trainers.cost.workload import FLOAT_BYTES, Pace, Workload, pace_of
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec, field_errors
from trainers.spec.memory import bytes_a_parameter, states_of_versions, vector_bytes

MOST_BY_DEFAULT = 64
ROWS = "algorithm: that rows may not divide evenly, or be too few for so many workers, is not counted"


SCHEDULES: dict[type[AlgorithmConfig], Callable[[TrainSpec, Any, Workload, Pace, Fleet], Step]] = {
    SyncConfig: sync_step,
    DownpourConfig: downpour_step,
    MixedConfig: mixed_step,
    EasgdConfig: easgd_step,
    HybridConfig: hybrid_step,
    ParallelSgdConfig: parallel_sgd_step,
    DilocoConfig: diloco_step,
    AdmmConfig: admm_step,
    SpatialConfig: spatial_step,
}
"""The closed forms of each algorithm."""


@dataclass(frozen=True)
class Machines:
    """Where a spec is planned."""

    cluster: Cluster
    pace: Pace
    basis: str
    """Where the pace comes from, in words."""
    paces: tuple[Pace, Pace] | None = None
    """The fastest and the slowest that nine of ten runs have; None where nothing was timed."""
    cores: int | None = None
    """Of each node, where workers share them."""


def usual_counts(spec: TrainSpec, machines: Machines) -> range:
    """Candidates of a request that names none: 1 to what the spec, the cluster or the cores allow, at most 64."""
    most = min(machines.cluster.num_devices, MOST_BY_DEFAULT)
    if spec.algorithm.traits.is_synchronous and not spec.scales_batch:
        most = min(most, spec.workers.num_virtual)
    elif machines.cores is not None:
        most = min(most, max(2 * machines.cores, spec.workers.count))
    return range(1, most + 1)


def machines_of(spec: TrainSpec, work: Workload, request: PlanRequest) -> Machines:
    """The described cluster, with a profile of its device or what this is said to reach; without one, the machine of
    the profile, or the nodes whose links were measured.

    Raises:
        SpecRejected: The profile is of something else, or there is neither.
    """
    cluster, profile, links = request.cluster, request.profile, request.links
    if cluster is not None and links is not None:
        raise SpecRejected("links: a described cluster has its own links; leave one of the two out")
    if profile is not None:
        check_profile(spec, profile)
    if cluster is None:
        assert profile is not None, "without a cluster there is a profile"
        measured = machine_of(profile) if links is None else cluster_of_links(links, profile.device, spec)
        is_one = links is None or len(links.nodes) == 1
        cores = max(1, profile.cores // spec.workers.threads) if is_one else None
        return Machines(measured, pace_of_profile(profile), f"{profile.steps} steps timed", between(profile), cores)
    if profile is None:
        try:
            pace = pace_of(cluster.device, work, spec.batch.per_worker)
        except ValueError as error:
            raise SpecRejected(f"cluster: {error}") from None
        return Machines(cluster, pace, "counted FLOPs and bytes")
    if profile.device != cluster.device.name:
        raise SpecRejected(
            f"profile: it is of device {profile.device}, and the cluster's is {cluster.device.name}; profile that, or "
            "leave the profile out"
        )
    return Machines(cluster, pace_of_profile(profile), f"{profile.steps} steps timed", between(profile))


def fleet_of(spec: TrainSpec, machines: Machines, workers: Sequence[int]) -> Fleet:
    """These numbers of workers on the machines."""
    counts = np.asarray(workers, dtype=np.int64)
    return Fleet(
        machines.cluster,
        counts,
        _virtual(spec, counts),
        np.full(len(counts), spec.ps.shards),
        memory_is_shared=spec.workers.gpus == 0 and spec.transport in ("auto", "shared_memory"),
        cores=machines.cores,
    )


def step_of(spec: TrainSpec, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """By the algorithm's own schedule.

    Raises:
        SpecRejected: The model does not cover it.
    """
    schedule = SCHEDULES.get(type(spec.algorithm))
    if schedule is None:
        raise SpecRejected(f"algorithm.name: the cost model does not know {spec.algorithm.name}; plan another")
    return schedule(spec, spec.algorithm, work, pace, fleet)


def make_plan(
    spec: TrainSpec, work: Workload, machines: Machines, workers: Sequence[int], price: float | None = None
) -> Plan:
    """What these numbers of workers would bring.

    Args:
        spec: The job.
        work: Its counted workload.
        machines: Where it would run.
        workers: Candidates.
        price: Of one worker for an hour.

    Raises:
        SpecRejected: The spec, or the cluster, cannot have so many workers, or the model does not cover the algorithm.
    """
    counts = candidates_of(spec, machines.cluster, workers)
    fleet = fleet_of(spec, machines, counts)
    step = step_of(spec, work, machines.pace, fleet)
    alone = _alone(spec, work, machines)
    paces = machines.paces or ()
    rates = np.stack([step.rate, *(step_of(spec, work, pace, fleet).rate for pace in paces)])
    bounds = (rates.min(0), rates.max(0)) if paces else None
    held = shard_bytes(spec, work, fleet)
    found = tuple(
        _candidate(step, fleet, i, alone, price).model_copy(
            update={
                "staleness": staleness_of(spec, counts[i], machines.pace.spread),
                "shard_bytes": None if held is None else int(held[i]),
                "least_per_s": None if bounds is None else float(bounds[0][i]),
                "most_per_s": None if bounds is None else float(bounds[1][i]),
            }
        )
        for i in range(len(counts))
    )
    best, reason, regret = recommended(found)
    traits, memory = spec.algorithm.traits, machines.cluster.device.memory
    by_rows = work.row_activities * (spec.workers.count - 1) // spec.workers.count
    activities = FLOAT_BYTES * (work.activities - by_rows) * spec.batch.per_worker
    parameters, divided = _trained(spec, work)
    vectors = vector_bytes(spec, spec.optimizer.num_states or 0, parameters, divided)
    return Plan(
        model=work.model,
        example=work.example,
        algorithm=spec.algorithm.name,
        per_worker=spec.batch.per_worker,
        parameters=parameters,
        cluster=machines.cluster.name,
        device=machines.cluster.device.name,
        basis=machines.basis,
        shards=spec.ps.shards if traits.uses_parameter_server else None,
        memory_bytes=None if bytes_a_parameter(spec) is None else vectors + activities,
        device_bytes=None if memory is None else int(memory),
        candidates=found,
        corner=_corner(spec, work, machines),
        recommended=best,
        regret=regret,
        reason=reason,
        notes=tuple(notes_of(spec, machines)),
    )


def candidates_of(spec: TrainSpec, cluster: Cluster, workers: Sequence[int]) -> list[int]:
    """Those that the algorithm can have, each once, in order.

    Raises:
        SpecRejected: None of them, or too many for the virtual workers or the cluster.
    """
    counts, most = sorted(set(workers)), max(workers)
    if most > cluster.num_devices:
        raise SpecRejected(f"workers: {cluster.name} has {cluster.num_devices} devices, not {most}; plan up to that")
    v = spec.workers.num_virtual
    if spec.algorithm.traits.is_synchronous and not spec.scales_batch and most > v:
        raise SpecRejected(
            f"workers: {most} workers cannot share the {v} virtual workers of the spec; plan up to {v}, or set "
            f"workers.virtual to {most}"
        )
    found, refused = list[int](), ""
    for count in counts:
        try:
            spec.algorithm.check_workers(count)
            found.append(count)
        except ValidationError as error:
            refused = field_errors(error, type(spec.algorithm))[0].message
    if not found:
        raise SpecRejected(f"workers: {refused}")
    return found


def shard_bytes(spec: TrainSpec, work: Workload, fleet: Fleet) -> Floats | None:
    """Of the fullest shard, for each number of workers: two versions of its slice of parameters and optimizer state,
    and two gradients that each worker may have under way; (C,)."""
    if not spec.algorithm.traits.uses_parameter_server or states_of_versions(spec) is None:
        return None
    share = fullest_share(spec, work.variables, fleet.shards)
    return share * work.num_bytes * (2 * (1 + work.num_states) + 2 * fleet.workers)


def notes_of(spec: TrainSpec, machines: Machines) -> list[str]:
    """What the model leaves out that this spec has."""
    traits = spec.algorithm.traits
    found = [ROWS] if traits.divides_examples else list[str]()
    if getattr(spec.algorithm, "max_staleness", None) is not None:
        found.append("max_staleness: that the fastest waits for the slowest is not counted")
    if getattr(spec.algorithm, "local_after", 0):
        found.append("local_after: the plan is of the steps after it; until then every step ends with an average")
    if traits.late is not None:
        found.append("server_rule: that the shards read what a worker had fetched, at each update, is not counted")
    if traits.uses_parameter_server and spec.ps.replicas > 1:
        found.append("ps.replicas: the second copy of each push is not counted")
    if traits.holds_examples and spec.algorithm.name == "parallel_sgd":
        found.append("algorithm: shuffles between rounds, and averages that are made once a round, are not counted")
    if getattr(spec.algorithm, "connect", None) is not None:
        found.append(
            "algorithm.connect: a layer that has a part of the weights is taken to compute for that part of the time"
        )
    if getattr(spec.algorithm, "columns", None) is not None:
        found.append("algorithm.columns: a part of each layer is taken to compute as fast, for its size, as the whole")
    if any(group.frozen for group in spec.optimizer.groups):
        found.append("optimizer.groups: frozen parameters are counted as if they were sent and updated")
    if spec.clip is not None and spec.clip.norm is not None:
        found.append("clip.norm: what workers exchange about the norm is not counted")
    if machines.cores is None and spec.workers.gpus == 0:
        found.append("workers.gpus is 0: workers of a node are taken to exchange through memory that all of them see")
    if machines.cores is not None:
        found.append("workers beyond the cores share them; how they share the processor's memory is not counted")
    elif machines.pace.spread == 0:
        found.append("no spread is known: nobody is taken to be slower than the others")
    return found


def _trained(spec: TrainSpec, work: Workload) -> tuple[int, Divided | None]:
    """Parameters of the counted model that are trained, and which of them workers share out, in equal parts."""
    config = spec.algorithm
    if not isinstance(config, HybridConfig):
        return work.parameters, None
    whole = work.parameters if config.columns is not None else work.head_parameters
    left_out = work.left_out(config.blocks, config.rank)
    trained, built = whole - left_out, whole - (left_out if config.rank else 0)
    return work.parameters - left_out, Divided(whole=trained, most=-(-trained // spec.workers.count), built=built)


def _virtual(spec: TrainSpec, counts: Ints) -> Ints:
    """V for each number of workers."""
    traits = spec.algorithm.traits
    if traits.is_synchronous and not spec.scales_batch:
        return np.full(len(counts), spec.workers.num_virtual)
    if spec.scales_batch:
        return counts * (spec.workers.num_virtual // spec.workers.count)
    return counts


def _alone(spec: TrainSpec, work: Workload, machines: Machines) -> float:
    """Examples a second of one worker that exchanges nothing."""
    step = step_of(spec, work, machines.pace, fleet_of(spec, machines, [1]))
    return float((step.examples / (step.computing_s + step.data_s))[0])


def _candidate(step: Step, fleet: Fleet, i: int, alone: float, price: float | None) -> Candidate:
    def at(values: np.ndarray) -> float:
        return float(np.broadcast_to(values, fleet.workers.shape)[i])

    exchanges = tuple(
        PlannedExchange(name=e.name, total_s=at(e.total_s), hidden_s=at(e.hidden_s), sent_bytes=at(e.sent_bytes))
        for e in step.exchanges
    )
    parts = {"waits": at(step.waiting_s), "data": at(step.data_s)}
    parts |= {e.name: e.total_s - e.hidden_s for e in exchanges}
    longest = sorted((name for name, seconds in parts.items() if seconds > 0), key=lambda name: -parts[name])
    first, second = [*longest, "", ""][:2]
    seconds, rate, workers = at(step.seconds), at(step.rate), int(fleet.workers[i])
    return Candidate(
        workers=workers,
        nodes=int(fleet.nodes[i]),
        examples_per_s=rate,
        speed_up=rate / alone,
        efficiency=rate / alone / workers,
        step_s=seconds,
        computing_s=at(step.computing_s),
        data_s=at(step.data_s),
        waiting_s=at(step.waiting_s),
        exchanges=exchanges,
        bottleneck=first,
        without_bottleneck=at(step.examples) / (seconds - parts.get(first, 0.0)),
        next_bottleneck=second,
        price=None if price is None else 1e6 * workers * price / 3600 / rate,
    )


def _corner(spec: TrainSpec, work: Workload, machines: Machines) -> float | None:
    """Of one worker's minibatch at the fullest shard, on the link that all of them use."""
    config = spec.algorithm
    if not isinstance(config, DownpourConfig | EasgdConfig):
        return None
    most = min(machines.cluster.num_devices, 4096)
    fleet = replace(fleet_of(spec, machines, [most]), cores=None)
    visits = Visits(spec, work, machines.pace, fleet, rhythm_of(config))
    think = np.array([visits.alone_s + machines.pace.data_s])
    return float(corner(think, visits.service_s)[0]) if visits.service_s[0] > 0 else None
