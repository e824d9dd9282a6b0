"""What else a job could be: each algorithm, number of shards, minibatch and number of workers, by the closed forms."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import numpy as np
from pydantic import ValidationError

from trainers.cost.plan import CLOSE, Option
from trainers.cost.planning import Machines, candidates_of, fleet_of, step_of
from trainers.cost.workload import Workload, pace_of
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec

NAMES = tuple(
    config.model_fields["name"].default for config in get_args(TrainSpec.model_fields["algorithm"].annotation)
)
"""Of the algorithms."""
DIVIDING = ("hybrid", "spatial")
"""Those that divide the model, or its images."""
SHARDS = (1, 2, 4, 8, 16)
BATCHES = (0.5, 1.0, 2.0, 4.0)
"""Times the examples of the spec's minibatch."""


def search(spec: TrainSpec, work: Workload, machines: Machines, workers: range | tuple[int, ...]) -> tuple[Option, ...]:
    """The best of each algorithm at each minibatch, the fastest first: over shards and workers the fewest of these that
    reach 95 % of its fastest rate. What is not possible for the spec is left out."""
    found = dict[tuple[str, int], list[Option]]()
    for variant in _variants(spec):
        try:
            options = _rated(variant, spec, work, machines, workers)
        except SpecRejected:
            continue
        found.setdefault((variant.algorithm.name, variant.batch.per_worker), []).extend(options)
    best = [_fewest(options) for options in found.values()]
    fastest = {n: max(o.examples_per_s for o in best if o.per_worker == n) for n in {o.per_worker for o in best}}
    told = (o.model_copy(update={"regret": 1 - o.examples_per_s / fastest[o.per_worker]}) for o in best)
    return tuple(sorted(told, key=lambda option: -option.examples_per_s))


def _variants(spec: TrainSpec) -> Iterator[TrainSpec]:
    """The spec with each algorithm, by default as far as it is another one, each number of shards, each minibatch."""
    written = spec.model_dump(mode="json")
    for name in NAMES:
        if name in DIVIDING and name != spec.algorithm.name:
            continue  # what they divide is counted only for a spec that has them
        algorithm = written["algorithm"] if name == spec.algorithm.name else {"name": name}
        for share in BATCHES:
            batch = {**written["batch"], "per_worker": max(1, int(share * spec.batch.per_worker))}
            try:
                found = TrainSpec.model_validate({**written, "algorithm": algorithm, "batch": batch})
            except ValidationError:
                continue
            if not found.algorithm.traits.uses_parameter_server:
                yield found
                continue
            for shards in sorted({*SHARDS, found.ps.shards}):
                yield found.model_copy(update={"ps": found.ps.model_copy(update={"shards": shards})})


def _rated(
    variant: TrainSpec, spec: TrainSpec, work: Workload, machines: Machines, workers: range | tuple[int, ...]
) -> list[Option]:
    if variant.algorithm.traits.is_synchronous and not variant.scales_batch:
        workers = tuple(count for count in workers if count <= variant.workers.num_virtual) or (1,)
    counts = candidates_of(variant, machines.cluster, workers)
    n, base = variant.batch.per_worker, spec.batch.per_worker
    if machines.paces is None and machines.cluster.device.flops is not None:
        pace = pace_of(machines.cluster.device, work, n)
    else:  # timed: as long for each example as in the minibatch that was
        timed = machines.pace
        parts = {name: getattr(timed, name) * n / base for name in ("forward_s", "backward_s", "data_s")}
        pace = replace(timed, **parts)
    fleet = fleet_of(variant, machines, counts)
    rates = np.broadcast_to(step_of(variant, work, pace, fleet).rate, fleet.workers.shape)
    shards = variant.ps.shards if variant.algorithm.traits.uses_parameter_server else None
    return [
        Option(algorithm=variant.algorithm.name, per_worker=n, shards=shards, workers=count, examples_per_s=float(rate))
        for count, rate in zip(counts, rates, strict=True)
    ]


def _fewest(options: list[Option]) -> Option:
    best = max(option.examples_per_s for option in options)
    near = [option for option in options if option.examples_per_s >= CLOSE * best]
    return min(near, key=lambda option: (option.workers, option.shards or 0, -option.examples_per_s))
