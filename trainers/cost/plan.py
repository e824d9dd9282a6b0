"""A plan: what is asked, and what each number of workers would bring, as plain values. Imports no torch."""

import re
from pathlib import Path
from typing import Any

from pydantic import Field

from trainers.cost.clusters.cluster import Cluster
from trainers.cost.clusters.links import LinkTable
from trainers.cost.figures import Figures, read_figures
from trainers.cost.simulation.simulated import Simulated
from trainers.cost.workload import LayerSeconds
from trainers.errors import SpecRejected

MOST_COUNTS = 4096
"""Workers of a run, and so candidates of a plan."""

CLOSE = 0.95
"""Fewer workers are recommended where they reach this share of the fastest rate."""


class Timed(Figures):
    """Seconds over the steps that were timed."""

    median_s: float = Field(ge=0)
    spread_s: float = Field(default=0.0, ge=0)
    """Standard deviation."""
    mean_s: float | None = Field(default=None, ge=0)
    """Which the rate of a run follows; null in older profiles."""

    @property
    def seconds(self) -> float:
        """The mean, or else the median."""
        return self.median_s if self.mean_s is None else self.mean_s


class StepProfile(Figures):
    """How long one worker takes for a minibatch of a spec, and what its way to another on the same machine takes."""

    of: dict[str, Any]
    """What was timed, by the fields of the spec that decide about it."""
    device: str
    """The manufacturer's name."""
    cores: int = Field(ge=1)
    """Of the machine."""
    steps: int = Field(ge=1)
    """That were timed, after a few that were not."""
    data: Timed
    """Waiting for a minibatch's examples."""
    forward: Timed
    backward: Timed
    update: Timed
    """Of all parameters."""
    in_place: Timed | None = None
    """Of all parameters where they lie, as of what nobody else reads; null: not timed, and taken to be as `update`."""
    copied: Timed = Timed(median_s=0.0)
    """Of all parameters, from one place in memory to another; 0: not timed."""
    layers: dict[str, LayerSeconds] = Field(default_factory=dict)
    """What each layer with parameters takes of the passes; empty: not timed."""
    rows: dict[int, float] = Field(default_factory=dict)
    """Of the passes, what the layers whose rows `spatial` divides take where a worker has 1 of so many parts of the
    rows; empty: not timed."""
    neighbours: int = Field(default=0, ge=0)
    """Processes that made such steps beside it, each on cores of its own; 0: nobody did."""
    contention: float = Field(default=1.0, ge=1.0)
    """How many times as long a step took meanwhile, since cores share caches and memory."""
    link_latency_s: float = Field(ge=0)
    """Of a meeting of two workers."""
    link_bytes_per_s: float = Field(gt=0)
    """At which a worker adds up what others have in memory."""


class PlanRequest(Figures):
    """What a plan is made for."""

    workers: tuple[int, ...] | None = None
    """Candidates; null: as many as the spec, the cluster or the machine's cores allow, up to 64."""
    nodes: tuple[int, ...] | None = None
    """Instead of numbers of workers: so many nodes, or switches, of the cluster or the links, each with as many workers
    as it has devices."""
    cluster: Cluster | None = None
    """Where it would run; null: on the machine of the profile."""
    profile: StepProfile | None = None
    """How long a minibatch takes; null: as the cluster's device says."""
    links: LinkTable | None = None
    """What the links of the nodes do, as `millrace links` has measured them, beside a profile; null: one machine, or as
    the cluster says."""
    price: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of one worker for an hour, in any currency."""
    search: bool = False
    """Whether to tell too what other algorithms, minibatches and numbers of shards would reach."""
    simulate: int = Field(default=0, ge=0, le=8)
    """How many candidates are simulated too: the recommended one, and then the fastest others."""


class Option(Figures):
    """One algorithm with one minibatch, with the shards and workers at which it is fast."""

    algorithm: str
    """With its own options if it is that of the spec, else with the defaults."""
    per_worker: int
    """Examples of a minibatch."""
    shards: int | None
    """Null where it has none."""
    workers: int
    """The fewest that reach 95 % of its fastest rate."""
    examples_per_s: float
    regret: float = 0.0
    """By how much the rate is below that of the fastest algorithm with this minibatch, as a share of it."""


class PlannedExchange(Figures):
    """One kind of message of a step."""

    name: str
    total_s: float
    hidden_s: float
    """Of that, while the worker computes."""
    sent_bytes: float
    """By the worker that sends most."""


class Staleness(Figures):
    """Updates of the parameters that a gradient does not know yet when a shard applies it."""

    mean: float
    least: float
    """Of 95 % of the pushes at least this."""
    most: float
    """Of 95 % of the pushes at most this."""


class Candidate(Figures):
    """One number of workers."""

    workers: int
    nodes: int
    """Switches of the cluster on which they hang."""
    examples_per_s: float
    least_per_s: float | None = None
    """The rate lies between this and `most_per_s` in nine of ten runs, as far as the spread of the timed steps tells;
    null without a profile."""
    most_per_s: float | None = None
    speed_up: float
    """Against one worker that trains alone and exchanges nothing."""
    efficiency: float
    """Speed-up a worker."""
    step_s: float
    """The parts: computing, data, waiting, and what each exchange does not hide."""
    computing_s: float
    data_s: float
    waiting_s: float
    exchanges: tuple[PlannedExchange, ...]
    bottleneck: str
    """The longest part besides computing; empty if there is none."""
    without_bottleneck: float
    """Examples a second if it took no time."""
    next_bottleneck: str
    """The longest part besides computing and that one."""
    staleness: Staleness | None = None
    """Null where all wait for all."""
    shard_bytes: int | None = None
    """What the fullest shard needs at least: two versions of parameters and state, two gradients for each worker; null
    without shards, and where the optimizer's class decides."""
    simulated: Simulated | None = None
    """What a simulation says of it; null where none was asked for."""
    price: float | None = None
    """Of a million examples, in the currency of the price an hour."""

    @property
    def sent_bytes(self) -> float:
        """By the worker that sends most, a step."""
        return sum(exchange.sent_bytes for exchange in self.exchanges)

    @property
    def seen_s(self) -> float:
        """What of the exchanges nothing hides."""
        return sum(exchange.total_s - exchange.hidden_s for exchange in self.exchanges)

    @property
    def hidden_s(self) -> float:
        """What of the exchanges passes while the worker computes."""
        return sum(exchange.hidden_s for exchange in self.exchanges)


class TargetTime(Figures):
    """How long until a metric has a value, as far as runs of the same job tell."""

    metric: str
    value: float
    jobs: tuple[str, ...]
    """The runs that have reached it."""
    noise_scale: float | None = None
    """Median over these, in examples, where they had other batches, and the gradient noise scale that they measured
    tells what that costs; null where they are runs of the same job."""
    epochs: float | None
    """Median over these; null without any: then it is unknown, and `trials` would tell."""
    seconds: dict[int, float]
    """By the number of workers; those are missing of which no run tells."""
    prices: dict[int, float]
    """Likewise, in the currency of the price an hour; empty without one."""
    trials: tuple[dict[str, Any], ...]
    """Specs of jobs that would tell what is missing."""


class Plan(Figures):
    """What more workers would bring."""

    model: str
    example: str
    algorithm: str
    per_worker: int
    parameters: int
    cluster: str
    device: str
    basis: str
    """Where the seconds of a minibatch come from."""
    shards: int | None
    """Null where the algorithm has none."""
    memory_bytes: int | None
    """Of a worker: vectors and activations; null where the optimizer's class decides."""
    device_bytes: int | None
    """Of the described device."""
    candidates: tuple[Candidate, ...]
    corner: float | None
    """Workers at which the shards are busy all the time, (T + tau)/tau: more of them bring nothing (paper 2, section
    5.2.1). Null without shards."""
    recommended: int
    """The fewest workers that reach 95 % of the fastest rate."""
    regret: float = 0.0
    """By how much the recommended rate is below the fastest, as a share of it."""
    reason: str
    target: TargetTime | None = None
    """Null where none was asked for."""
    options: tuple[Option, ...] = ()
    """The fastest first; empty unless they were asked for."""
    notes: tuple[str, ...] = ()
    """What this prediction leaves out for this spec."""

    def of(self, workers: int) -> Candidate:
        """The candidate with so many."""
        return next(each for each in self.candidates if each.workers == workers)


def recommended(candidates: tuple[Candidate, ...]) -> tuple[int, str, float]:
    """The fewest workers close to the fastest, why, and the regret."""
    best = max(candidates, key=lambda each: each.examples_per_s)
    near = [each for each in candidates if each.examples_per_s >= CLOSE * best.examples_per_s]
    least = min(near, key=lambda each: each.workers)
    words = f"{rate_words(least.examples_per_s)} examples a second at {least.efficiency:.0%} efficiency"
    if least.workers != best.workers:
        words += f", within 5 % of the {rate_words(best.examples_per_s)} of {best.workers}"
    if least.bottleneck:
        words += f"; held back by {least.bottleneck}"
    if least.workers > 1 and least.speed_up < 1:
        words += f"; one worker that exchanges nothing is {1 / least.speed_up:.3g} times as fast"
    return least.workers, words, 1 - least.examples_per_s / best.examples_per_s


def rate_words(rate: float) -> str:
    """Examples a second, with as many digits as mean something."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def worker_counts(text: str, of: str = "workers") -> tuple[int, ...]:
    """The numbers of `1..64` or of `1,2,4,8`. of: What is counted, for errors.

    Raises:
        SpecRejected: It is neither.
    """
    found = set[int]()
    for part in text.split(","):
        match = re.fullmatch(r" *([1-9]\d{0,99})(?:\.\.([1-9]\d{0,99}))? *", part)
        if match is None:
            raise SpecRejected(f"{of}: {text!r} is no list of whole numbers above 0; write 1..64, or 1,2,4,8")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last > MOST_COUNTS:
            raise SpecRejected(f"{of}: {part.strip()} is no range of up to {MOST_COUNTS} {of}; write 1..64")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def read_profile(path: Path) -> StepProfile:
    """A profile that was kept.

    Raises:
        SpecRejected: The file is none, with the field.
    """
    return read_figures(StepProfile, path, "profile", "profile")
