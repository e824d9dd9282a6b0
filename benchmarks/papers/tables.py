"""What the four papers measured, and what the cost model predicts for it: a table each, with every constant used.

No constant is fitted on the row that it predicts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from scipy.optimize import brentq

from trainers.cost.clusters.cluster import Cluster, read_cluster
from trainers.cost.counting import count_workload
from trainers.cost.schedules.among_workers import bucket_s
from trainers.cost.schedules.fleet import Fleet
from trainers.cost.schedules.hybrid import hybrid_step
from trainers.cost.schedules.repairman import corner, response_s
from trainers.cost.schedules.synchronous import sync_step
from trainers.cost.workload import LayerWork, Pace, Workload, pace_of
from trainers.spec import TrainSpec

HOUR_S = 3600
IMAGENET = 1_281_167


@dataclass(frozen=True)
class Row:
    """One figure of a paper, and ours."""

    name: str
    printed: float
    predicted: float
    constants: str = ""
    """Fitted without this row, if any."""

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what is printed."""
        return self.predicted / self.printed - 1


@dataclass(frozen=True)
class PaperTable:
    """Rows of one table, with the bounds that the model is held to."""

    title: str
    unit: str
    rows: tuple[Row, ...]
    most: float
    """The largest error allowed, as a share, or in the difference that `differs` says."""
    middle: float | None = None
    """The largest median error allowed."""
    constants: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=())

    @property
    def errors(self) -> list[float]:
        """Of the rows, without their signs."""
        return [abs(row.error) for row in self.rows]

    @property
    def verdict(self) -> str:
        """Of the bounds."""
        worst, middle = max(self.errors), median(self.errors)
        missed = [f"at most {self.most:.0%}, and it is {worst:.1%}"] if worst > self.most else []
        if self.middle is not None and middle > self.middle:
            missed.append(f"a median of {self.middle:.0%}, and it is {middle:.1%}")
        found = f"median {middle:.1%}, at most {worst:.1%}"
        return f"met: {found}" if not missed else f"**missed**: {'; '.join(missed)}"


# -- paper 1 ----------------------------------------------------------------------------------------------------------

GPUS = (2, 4, 8)
HOURS = {1: 98.05, 2: 50.24, 4: 26.20, 8: 15.68}
VARIABLE_HOURS = {2: 50.90, 4: 26.78, 8: 15.91}


TRIED = (
    "The variable batch is not what is off: the rows of whole batches are too quick by 6, 15 and 5 ms a step, and "
    "these by 9, 20 and 8. What was tried, and not taken:",
    "- An update by three passes over memory, as the author's published code makes it, moves nine vectors and not "
    "five. What the variable batch adds is then 5.1, 7.6 and 8.8 ms, where 5.3, 9.3 and 7.4 are printed, and not 2.8, "
    "4.2 and 4.9. But the step on one GPU has a whole update too, from which all rows begin: here the errors stay "
    "(median 2.2 %, at most 4.8 %), and the table above misses its bounds (2.1 %, 4.5 %).\n"
    "- Nothing of the broadcasts hidden, one sender at a time with a whole link: median 2.1 %, at most 2.4 % here, and "
    "1.2 %, 1.5 % above. But the paper says that (K - 1)/K of them are hidden.\n"
    "- GPUs that wait for the slowest, with a spread of their steps that is fitted on the other rows of the table "
    "above: median 2.3 %, at most 3.5 %. But then a constant is fitted, and it differs from 1.3 to 3.5 % with the row "
    "that is left out.",
)


def paper_1() -> tuple[PaperTable, PaperTable]:
    """Table 1: scheme b on one-towered AlexNet; the row of one GPU is the base. Without and with variable batch."""
    spec = TrainSpec.model_validate(
        {
            "model": "alexnet_one_tower",
            "loss": "logistic",
            "data": "imagenet",
            "batch": 128,
            "workers": 8,
            "algorithm": {"name": "hybrid", "scheme": "b", "split": "outputs"},
        }
    )
    work, cluster = count_workload(spec), read_cluster("one-weird-trick")
    alone = HOURS[1] * HOUR_S / (90 * IMAGENET / 128)
    pace = _pace(work, alone, pace_of(cluster.device, work, 128).update_s)
    counts = np.array(GPUS)
    fleet = Fleet(cluster, counts, counts, np.ones(3, dtype=int))
    constants = (
        "published: 6 GB/s a PCIe link, half of it once GPUs of both CPUs communicate; 98.05 h on one GPU",
        "NVIDIA's: 208 GB/s of a K20's memory, by which an update is taken to be bound",
        "fitted: none. That the slowest link sets the pace of all, and that what is waited for gets half of a link on "
        "which it meets hidden messages, are rules of the whole model, written down with this table at hand",
    )
    tables = []
    for fc_batch, hours, title in (("whole", HOURS, "batch (128K, 128K)"), ("per_turn", VARIABLE_HOURS, "(128K, 128)")):
        config = spec.algorithm.model_copy(update={"fc_batch": fc_batch})
        seconds = hybrid_step(spec, config, work, pace, fleet).seconds  # type: ignore[arg-type]
        rows = tuple(
            Row(f"{gpus} GPUs", hours[gpus], float(seconds[i]) * 90 * IMAGENET / 128 / gpus / HOUR_S)
            for i, gpus in enumerate(GPUS)
        )
        tried = TRIED if fc_batch == "per_turn" else ()
        tables.append(PaperTable(f"Paper 1, table 1, {title}", "hours", rows, 0.04, 0.02, constants, tried))
    first, second = tables
    return first, second


def _pace(work: Workload, step_s: float, update_s: float) -> Pace:
    """A measured step, cut by counted FLOPs."""
    passes, forward = step_s - update_s, work.forward_flops / (work.forward_flops + work.backward_flops)
    return Pace(passes * forward, passes * (1 - forward), update_s)


# -- paper 4 ----------------------------------------------------------------------------------------------------------

STEP_8, STEP_256 = 0.232, 0.256
"""29 hours on 8 GPUs of 32 examples each; an hour on 256."""


def paper_4() -> tuple[PaperTable, PaperTable]:
    """How much longer a step is on 352 GPUs than on 8; and two all-reduces among 32 servers."""
    cluster = read_cluster("big-basin")
    spec = TrainSpec.model_validate(
        {
            "model": "resnet50",
            "data": "imagenet",
            "batch": 32,
            "workers": 352,
            "algorithm": {"name": "sync", "reduction": "fast", "all_reduce": "three_phase"},
        }
    )
    work = count_workload(spec)

    def step_s(gpus: int, spread: float) -> float:
        fleet = Fleet(cluster, np.array([gpus]), np.array([gpus]), np.array([1]))
        pace = Pace(STEP_8 - 0.12, 0.12, 0.0, spread=spread)
        return float(sync_step(spec, spec.algorithm, work, pace, fleet).seconds[0])  # type: ignore[arg-type]

    def missing(spread: float) -> float:
        return step_s(256, spread) / step_s(8, spread) - STEP_256 / STEP_8

    spread = float(brentq(missing, 0.0, 0.2, xtol=1e-5))
    told = f"a spread of {spread:.1%} of a GPU's step, from the row of 256 GPUs"
    efficiency = Row("efficiency on 352", 1 / 1.12, step_s(8, spread) / step_s(352, spread), told)
    scaling = PaperTable(
        "Paper 4, figure 7: 352 GPUs against 8",
        "share of 8 GPUs' rate a GPU",
        (efficiency,),
        0.02 / efficiency.printed,
        constants=(
            "published: 120 ms of back-propagation, 50 Gbit/s, 29 h on 8 GPUs, an hour on 256",
            "not published: 0.1 ms a communication step over Ethernet, NVLink at 80 GB/s, both hidden nearly wholly",
        ),
        remarks=(
            f"Without the spread, messages make a step {step_s(352, 0.0) / step_s(8, 0.0) - 1:.1%} longer: "
            "nearly all is hidden behind back-propagation, and its bandwidth does not explain what the paper measured.",
            "12 % is what the paper prints; its 30 s an epoch on 352 GPUs would be 14 %, against which the prediction "
            f"of {step_s(352, spread) / step_s(8, spread) - 1:.1%} is 2.5 to 3 points short.",
        ),
    )
    return scaling, _all_reduces(cluster)


def _all_reduces(cluster: Cluster) -> PaperTable:
    servers = np.array([32])
    one_each = cluster.model_copy(update={"switches": (cluster.switches[0].model_copy(update={"devices": 1}),)})
    fleet = Fleet(one_each, servers, servers, np.array([1]))

    def ratio(num_bytes: float) -> float:
        return float((bucket_s(fleet, "ring", num_bytes) / bucket_s(fleet, "halving_doubling", num_bytes))[0])

    return PaperTable(
        "Paper 4, section 4.1: the ring's time to that of halving and doubling, 32 servers",
        "ratio",
        (Row("a million elements", 3.0, ratio(4e6)),),
        0.15,
        constants=(
            "published: 50 Gbit/s, buffers up to a million elements",
            "not published: 0.1 ms a communication step, which Millrace takes where none is measured",
        ),
        remarks=(f"At 2 and 8 MB the ratio would be {ratio(2e6):.1f} and {ratio(8e6):.1f}.",),
    )


# -- paper 2 ----------------------------------------------------------------------------------------------------------


def paper_2() -> PaperTable:
    """P = T/tau by mean value analysis, against the closed form of the machine repairman's model."""
    think, service = np.array([0.1]), np.array([0.004])
    rows = []
    for workers in (1, 8, 26, 64, 256):
        response = response_s(np.array([workers]), think, service)[0]
        rows.append(Row(f"{workers} workers", _repairman(workers, 0.1, 0.004), workers / (0.1 + response)))
    knee = float(corner(think, service)[0])
    return PaperTable(
        f"Paper 2, section 5.2.1: T = 100 ms, tau = 4 ms, the corner at {knee:g} workers",
        "updates a second",
        tuple(rows),
        1e-6,
        constants=("exact: Erlang's loss formula",),
        remarks=("This is one formula against another; real shards with workers that sleep are at the end.",),
    )


def _repairman(workers: int, think_s: float, service_s: float) -> float:
    """Updates a second, from the probability that the shard is idle: 1 / sum of K! / (K - n)! (tau/T)^n."""
    logs = [
        math.lgamma(workers + 1) - math.lgamma(workers - n + 1) + n * math.log(service_s / think_s)
        for n in range(workers + 1)
    ]
    most = max(logs)
    idle = math.exp(-most) / sum(math.exp(each - most) for each in logs)
    return (1 - idle) / service_s


# -- how fast the model itself is -------------------------------------------------------------------------------------


def some_work() -> Workload:
    """A model of 50 equal layers."""
    layer = LayerWork(name="l", parameters=100_000, forward_flops=10**8, backward_flops=2 * 10**8)
    return Workload(model="m", example="e", layers=(layer,) * 50, variables=(100_000,) * 50)


def some_cluster() -> Cluster:
    """Paper 4's, with 125 of its machines."""
    found = read_cluster("big-basin")
    return found.model_copy(update={"switches": (found.switches[0].model_copy(update={"count": 125}),)})


def many_candidates(count: int = 10_000) -> Callable[[], None]:
    """Predicts so many candidates of Downpour, and of sync in buckets, when called: 1 to 1,000 workers, 1 to 10
    shards."""
    work, cluster = some_work(), some_cluster()
    workers = np.tile(np.arange(1, 1001), count // 1000)
    fleet = Fleet(cluster, workers, workers, np.repeat(np.arange(1, count // 1000 + 1), 1000))
    pace = pace_of(cluster.device, work, 32)
    downpour = TrainSpec.model_validate({"algorithm": "downpour", "workers": 2})
    sync = TrainSpec.model_validate({"algorithm": {"name": "sync", "reduction": "fast"}, "workers": 2})

    def predict() -> None:
        from trainers.cost.planning import step_of

        for spec in (downpour, sync):
            assert np.all(step_of(spec, work, pace, fleet).rate > 0)

    return predict
