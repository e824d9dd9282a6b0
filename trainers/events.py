"""The event log of a run: numbered, without gaps. Everything that shows a run reads this log and nothing else.

| type | data |
|---|---|
| `state` | `state`, `reason` (CamelCase), `message`; of the first `by`: who has submitted it, where a service asks |
| `request` | `action` (`job.cancel`, `job.scale`, ...), `by`, and what was asked for, as in the service's audit |
| `step` | a `Metrics` over all workers since the last one |
| `evaluation` | `epoch` (with its fraction within an epoch), `examples`, `step` of a synchronous run,
`seconds`, each metric of the task as `test_` and its name (`test_loss`;
`test_accuracy`, 0 to 1, with `test_error_median`; `test_perplexity` ...),
`headline`: the name of the one by which runs are compared, and of that `higher_is_better`;
in a run with a validation set `set`: `validation`, and then `validation_` stands for `test_`,
or at the very end `test` |
| `epoch` | `epoch` (just ended, from 1), `examples`, `train_loss`, `learning_rate` |
| `checkpoint` | `path`, `epoch`, `examples` |
| `log` | `level` (`info`, `warning`, `error`), `message`; `example` where a training example is skipped; of what
an actor's code has printed `actor` (`worker/2`), `stream` (`stdout`, `stderr`) and `at`, when it was |
| `warning` | `message`: the loss stays where guessing would have it, or jumps and stays; `examples`, `epoch` |
| `actors` | `workers`, `shards`: names as in Ray's dashboard, with node and process id |
| `resize` | `workers`: how many train from here on; `joined`, `left`: names; `nodes`: of who joined; `examples` |
| `fault` | `actor`, `why`; `examples` |
| `trace` | a `worker` (its number) records `asked` steps, and has `steps` so far; once it is over `file` and `bytes`,
its name in `traces` of the run's folder, or `why` there is none, or fewer steps than asked |
| `usage` | a `Usage`: what each actor used of its machine since the last one |
| `epoch_audit` | `epoch`, of its examples how many were `trained`, `lost`, `duplicated`; minibatches `dropped` so far |
| `result` | a `Result`; stands just before the terminal `state` of a run that succeeded |

A sweep has a log of its own, with the types `state`, `log` and

| type | data |
|---|---|
| `trial` | `trial` (the job's id), `number`, `state`, `reason`, `message`, `settings`, and its last figures |
| `progress` | how many trials there are in each state, `total`, `progress` (0 to 1), `eta_s` |
"""

import math
import statistics
from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from trainers.documented import Documented
from trainers.latency import Latency
from trainers.metrics import StepCounters
from trainers.prediction import Comparison

EventType = Literal[
    "state",
    "request",
    "step",
    "evaluation",
    "epoch",
    "checkpoint",
    "log",
    "warning",
    "actors",
    "resize",
    "fault",
    "trace",
    "usage",
    "epoch_audit",
    "result",
    "trial",
    "progress",
]


NO_ROOM = "WaitsForRoom"
"""The reason of a run whose workers find no room on the cluster yet."""
RETRYING = "Retrying"
"""The reason of a run that waits to be started again after it failed."""


class State(StrEnum):
    """Where a job is."""

    QUEUED = "QUEUED"
    """Also the last event of a coordinator that failed, if the run is to be started again."""
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    """It holds no resources of the cluster, and continues when it is resumed."""
    RECOVERING = "RECOVERING"
    """Too few workers are left and it waits for resources, or its coordinator died and another takes over."""
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class StopReason(NamedTuple):
    """Why somebody wants a run to stop, for the last line of its log."""

    reason: str
    """In CamelCase."""
    message: str


class Event(BaseModel):
    """One line of the log."""

    model_config = ConfigDict(frozen=True)

    seq: int
    """From 1, without a gap."""

    time: float
    """Seconds since 1970, of the coordinator's clock."""

    type: EventType
    data: dict[str, Any]

    @cached_property
    def text(self) -> str:
        """The event as JSON; computed once for all readers."""
        return self.model_dump_json()

    @property
    def is_terminal(self) -> bool:
        """Whether the log ends here."""
        return self.type == "state" and State(self.data["state"]).is_terminal


class Metrics(StepCounters):
    """What all workers did since the last report."""

    model_config = ConfigDict(frozen=True)

    step: int
    """Updates made so far (synchronous steps, or pushes)."""
    epoch: float
    """Passes over the training set so far, with its fraction."""
    run_epochs: float = 0.0
    """Passes that the whole run makes; 0 in logs that do not tell it."""
    examples: int
    """Examples trained so far."""
    examples_per_s: float
    """Of all workers, over the time since their last reports."""
    loss: float
    """Mean over the examples since the last report."""
    learning_rate: float
    noise_scale: float | None = None
    """Gradient noise scale, examples: a moving average over some hundred steps. Null where it is not measured
    (`algorithm.noise_scale`), or not yet known."""
    gradient_norm: float | None = None
    """Mean since the last report of the norms of the gradients of updates, before they were clipped; null where none is
    measured (`clip.norm`)."""
    loss_scale: float | None = None
    """By what losses are multiplied for the backward pass; halved by each update that was left out, since its gradient
    was not finite. Null where they are not (`precision: float16`)."""
    workers: int
    """That train; of an asynchronous run, those that reported."""
    staleness: dict[int, int]
    """How many updates so far were applied at which staleness, in updates between fetch and application; where groups
    of parameters are pushed by themselves, a push counts at that of its stalest group."""
    group_staleness: list[dict[int, int]] = []
    """Likewise in each group of parameters, in the order of the model; empty where they are pushed together."""
    backprop_delays: list[int] = []
    """How many minibatches each group of layers goes backward behind the last, from the first group to the last; empty
    where back-propagation is not asynchronous."""
    dropped: int = 0
    """Minibatches so far whose gradients came too late for their step; their examples were trained in another."""


class Usage(Documented):
    """What the actors of a run used of their machines. Each list has a value for each actor, in their order."""

    model_config = ConfigDict(frozen=True)

    seconds: float
    """Since the event before, over which it is told."""
    actors: list[str]
    """Names within the run: `worker/0`, `shard/1`, `evaluator`, `coordinator`."""
    cpu_cores: list[float]
    """CPU seconds a second, of all threads of the process and not of processes that it has started."""
    memory_mb: list[float]
    """The most that was resident, with what is shared, in 10^6 bytes."""
    sent_kb_per_s: list[float]
    """Over TCP connections of the process, in 10^3 bytes. What goes through memory that is shared, or through Ray's
    object store, does not count."""
    received_kb_per_s: list[float]
    """Likewise."""
    gpu_share: list[float | None] = []
    """0 to 1: the time in which the actor's GPU computed, whoever had it compute; empty where no actor tells it."""
    gpu_memory_mb: list[float | None] = []
    """The most that the process had taken from its GPU, in 10^6 bytes."""


class BestModel(Documented):
    """The version of a run that was best by one metric."""

    model_config = ConfigDict(frozen=True)

    metric: str
    value: float
    epoch: float
    examples: int
    """Trained by then."""
    model_path: str
    """`best.safetensors` in the run's folder."""


class Result(Documented):
    """How a run ended, as `millrace run -o json` prints it."""

    model_config = ConfigDict(frozen=True)

    job_id: str
    state: State
    epochs: float
    examples: int
    test_accuracy: float | None
    """0 to 1; null where the task has no accuracy, or the test set was not evaluated."""
    test_loss: float | None
    test_error_median: float | None = None
    """Median of 1 - accuracy over the evaluations at the ends of the last 5 epochs (paper 4, section 5.1); null where
    there was none."""
    train_loss: float | None
    """Mean over the last epoch."""
    metrics: dict[str, float | None] = {}  # a model copies its defaults
    """Every metric of the task on the test set, by name: `loss`, and `accuracy`, `perplexity`, `r2` ...; null for one
    that has no finite value, as a mean over nothing has none."""
    validation: dict[str, float | None] = {}
    """Likewise on the validation set, of a run that has one."""
    headline: str | None = None
    """The one of them by which runs are compared; null where none was measured."""
    higher_is_better: bool | None = None
    """Of the headline."""
    examples_per_s: float
    """Mean over the time from the first step to the last."""
    wall_s: float
    """Seconds at work, over all lives of the run; while it waited or was paused is not counted."""
    noise_scale: float | None = None
    """Gradient noise scale of the whole run, in examples; null where it was not measured (`algorithm.noise_scale`)."""
    fetch_latency: Latency | None = None
    """How long fetches of parameters from the shards took; null where nothing was fetched, or nobody counted."""
    push_latency: Latency | None = None
    """How long pushes of gradients to the shards took until all of them had acknowledged, likewise."""
    predicted: Comparison | None = None
    """What was predicted of the rate against what was measured; null where no profile of the step is kept (`predict`),
    or the run was too short."""
    algorithm: str
    workers: int
    dropped: int = 0
    """Minibatches whose gradients came too late for their step (backup workers)."""
    lost_updates: int = 0
    """Acknowledged updates that shards without a second copy (`ps.replicas: 1`) lost when they died."""
    unsent_examples: int = 0
    """Examples that workers, or groups, with `push: delta` or `easgd` had been leased at most when they were lost, or
    cut off for too long, before they had sent what these changed. They were trained again."""
    skipped: tuple[int, ...] = ()
    """Training examples that could not be read and were skipped (`data.on_error: skip`)."""
    model_path: str | None
    """`model.safetensors`, where the run left one."""
    best: BestModel | None = None
    """The best model so far; null where none is kept (`checkpoint.keep_best`)."""
    message: str
    """The last state's sentence."""
    warning: str | None = None
    """What is wrong with a run that ended well: its loss stayed at chance, or above its start; null if nothing is."""


AT_REST = frozenset({State.QUEUED, State.PAUSED})


def adds_to_work(state: State) -> bool:
    """Whether time in this state is time in which a run is at work, and not waiting, paused or over."""
    return state not in AT_REST and not state.is_terminal


def at_work_s(events: Iterable[Event], until: float) -> float:
    """Seconds in which a run was at work, over all its lives. until: Seconds since 1970."""
    seconds, since, state = 0.0, until, State.QUEUED
    for event in events:
        seconds += max(0.0, event.time - since) if adds_to_work(state) else 0.0
        since = event.time
        state = State(event.data["state"]) if event.type == "state" else state
    return seconds + (max(0.0, until - since) if adds_to_work(state) else 0.0)


def who_trains(workers: int, wanted: int = 0) -> str:
    """A sentence. wanted: How many were asked for; 0: as many."""
    if wanted > workers:
        return f"{workers} of {wanted} workers train; the others join when there is room"
    return "1 worker trains" if workers == 1 else f"{workers} workers train"


EvaluatedSet = Literal["validation", "test"]


def set_of(evaluation: dict[str, Any]) -> EvaluatedSet:
    """Which set an `evaluation` is of."""
    found: EvaluatedSet = evaluation.get("set", "test")
    return found


def is_judged(evaluation: dict[str, Any]) -> bool:
    """Whether a run is judged by this `evaluation`: in a run with a validation set not by that of the test set."""
    return bool(evaluation.get("set") != "test")


def measured_in(evaluation: dict[str, Any]) -> dict[str, float | None]:
    """The task's metrics in the data of an `evaluation`, by name; None for what has no finite value, as a mean over
    nothing has none."""
    begin = f"{set_of(evaluation)}_"
    named = {name.removeprefix(begin): value for name, value in evaluation.items() if name.startswith(begin)}
    named.pop("error_median", None)
    return {name: value if value is not None and math.isfinite(value) else None for name, value in named.items()}


def metrics_of(evaluation: dict[str, Any]) -> dict[str, float]:
    """Those of them that have a value."""
    return {name: value for name, value in measured_in(evaluation).items() if value is not None}


def headline_of(evaluation: dict[str, Any]) -> tuple[str, bool] | None:
    """The metric of an `evaluation` by which runs are compared, and whether more of it is better; None where there is
    no such metric in it. Logs that do not say are older than tasks: theirs is the accuracy."""
    measured = measured_in(evaluation)
    name = evaluation.get("headline", "accuracy" if "accuracy" in measured else "loss")
    return (name, evaluation.get("higher_is_better", name == "accuracy")) if name in measured else None


MEDIAN_EPOCHS = 5


def error_median(evaluations: Iterable[tuple[float, float]]) -> float | None:
    """Median test error over the last 5 epochs (paper 4, section 5.1), from pairs of epoch and accuracy."""
    return last_median((epoch, 1 - accuracy) for epoch, accuracy in evaluations)


def last_median(values: Iterable[tuple[float, float]]) -> float | None:
    """Median over the last 5 epochs, from pairs of epoch and value; None where there is none."""
    pairs = list(values)
    last = max((epoch for epoch, _ in pairs), default=0)
    found = [value for epoch, value in pairs if epoch > last - MEDIAN_EPOCHS]
    return statistics.median(found) if found else None
