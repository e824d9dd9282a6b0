"""What a profile tells a plan: whether it is of the spec's minibatch, how long that takes, and how sure that is."""

from dataclasses import replace
from pathlib import Path

from trainers.cost.clusters.cluster import Cluster
from trainers.cost.plan import StepProfile
from trainers.cost.workload import Pace
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec

NINE_OF_TEN = 1.645
"""Standard deviations of a normal distribution on either side of its mean that hold so many."""
LEAST = 0.1
"""Of its mean: no part is taken to be quicker, however widely few steps have spread."""


def processor() -> str:
    """The manufacturer's name of this machine's processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def profiled_fields(spec: TrainSpec) -> dict[str, object]:
    """The fields of a spec that decide how long a minibatch takes."""
    model = spec.model.model_dump(mode="json")
    data = spec.data.model_dump(mode="json", exclude={"root", "download"})
    return {
        "task.name": spec.task.name,
        "model.name": model.pop("name"),
        "model": model,
        "data.name": data.pop("name"),
        "data": data,
        "batch.per_worker": spec.batch.per_worker,
        "optimizer.name": spec.optimizer.name,
        "precision": spec.precision,
        "workers.threads": spec.workers.threads,
    }


def counted_fields(spec: TrainSpec) -> dict[str, object]:
    """The fields of a spec that decide what is counted of it: on equal ones `count_workload` finds the same."""
    sections = {name: getattr(spec, name).model_dump(mode="json") for name in ("task", "model", "data", "optimizer")}
    traits = {"algorithm": spec.algorithm.name, "split": getattr(spec.algorithm, "split", None)}
    if connect := getattr(spec.algorithm, "connect", None):
        traits["connect"] = connect.model_dump(mode="json")
    return sections | traits | {"loss": spec.loss, "seed": spec.seed, "code": spec.code}


def check_profile(spec: TrainSpec, profile: StepProfile) -> None:
    """Raises SpecRejected: it is of another spec's minibatch, with the first field that differs."""
    for name, mine in profiled_fields(spec).items():
        theirs = profile.of.get(name)
        if theirs != mine:
            both = f"{theirs}, and the spec has {mine}" if not isinstance(mine, dict) else "another, in some option"
            raise SpecRejected(f"profile: it is of {name} {both}; make another, or leave it out")


def pace_of_profile(profile: StepProfile) -> Pace:
    """The same seconds, as the schedules take them."""
    passes = profile.forward.seconds + profile.backward.seconds
    spread = (profile.forward.spread_s**2 + profile.backward.spread_s**2) ** 0.5
    return Pace(
        forward_s=profile.forward.seconds,
        backward_s=profile.backward.seconds,
        update_s=profile.update.seconds,
        data_s=profile.data.seconds,
        spread=spread / passes if passes else 0.0,
        copy_s=profile.copied.seconds,
        in_place_s=None if profile.in_place is None else profile.in_place.seconds,
    )


def contention_of(profile: StepProfile) -> float:
    """By what share each worker beside another makes its steps longer: as each of the neighbours did."""
    return (profile.contention - 1) / profile.neighbours if profile.neighbours else 0.0


def between(profile: StepProfile) -> tuple[Pace, Pace]:
    """The paces between which that of nine runs of ten lies, if steps of a run spread as those that were timed.

    The mean of n steps is known to s / sqrt(n) where one step spreads by s, and that over as many steps of a run
    differs by as much from what it would be in the long run. Nothing is taken to cancel: in a slow run all parts are
    slow.
    """
    error = NINE_OF_TEN * (2 / profile.steps) ** 0.5
    pace = pace_of_profile(profile)
    parts = {"forward_s": profile.forward, "backward_s": profile.backward, "update_s": profile.update}
    parts |= {"data_s": profile.data, "copy_s": profile.copied}
    parts |= {} if profile.in_place is None else {"in_place_s": profile.in_place}

    def moved(way: int) -> Pace:
        seconds = {
            name: max(LEAST * part.seconds, part.seconds + way * error * part.spread_s) for name, part in parts.items()
        }
        return replace(pace, **seconds)

    return moved(-1), moved(1)


def machine_of(profile: StepProfile) -> Cluster:
    """The machine of a profile as a cluster of one node that has room for any number of workers."""
    return Cluster.model_validate(
        {
            "name": "this machine",
            "device": {"name": profile.device},
            "links": {"memory": {"latency": profile.link_latency_s, "bandwidth": profile.link_bytes_per_s}},
            "switches": [{"devices": 4096}],
            "inside": "memory",
        }
    )
