"""Everything that one run of the benchmark found out, and what it has to reach."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.memory import RunMemory
from benchmarks.measurement.statistics import Spread, Target, paired

LIMIT, DDP = "limit: two processes that never talk", "DDP on gloo"
LIMIT_OURS, DDP_OURS = "the limit with Millrace's products", "DDP on gloo with Millrace's products"
RAY_SYNC, RAY_ASYNC = "Ray's parameter server, synchronous", "Ray's parameter server, asynchronous"
RAY_TUNED = "the same, asynchronous, tuned beyond the documentation"
SYNC, DOWNPOUR = "Millrace sync", "Millrace downpour 1/1, staleness 1"
BARE = {SYNC: "bare loop of Millrace sync", DOWNPOUR: "bare loop of Millrace downpour"}
FIRST_STEP = "submit to first step, s"

RATIOS = (
    (Target("sync to DDP", 1.4, in_reach=1.5), SYNC, DDP),
    (Target("downpour to DDP", 1.15, in_reach=1.25), DOWNPOUR, DDP),
    (Target("downpour to Ray's asynchronous pattern", 1.8, in_reach=2.0), DOWNPOUR, RAY_ASYNC),
)
FIRST_STEP_TARGET = Target("submit to first step, cold, s", 8.0, "at most")
CPU_TARGET = "CPU seconds a step, whole path to bare loop"
CPU_BOUND = 1.03
SERVICE_TARGET = Target("memory of the service's process, MB", 250.0, "at most")


@dataclass
class Results:
    """Filled round by round."""

    machine: dict[str, str]
    settings: dict[str, str]
    load_before: str = ""
    load_after: str = ""
    tried: dict[str, list[float]] = field(default_factory=dict)
    """Configurations of the peers that were tried before the rounds, examples/s; the best one was taken."""
    rounds: list[dict[str, Measurement]] = field(default_factory=list)
    """By contender; one that failed in a round is missing there."""
    failures: dict[str, str] = field(default_factory=dict)
    """Last line of the reason, by contender."""
    memory: dict[str, RunMemory] = field(default_factory=dict)
    """By algorithm of ours."""
    service: dict[str, int] = field(default_factory=dict)
    """`Pss` and `Rss` of the service's process, bytes; empty where it was not measured."""

    @property
    def contenders(self) -> list[str]:
        """Those that were measured at least once, in the order of their first appearance."""
        return list(dict.fromkeys(name for each in self.rounds for name in each))

    def spread(self, name: str, of: Callable[[Measurement], float | None]) -> Spread | None:
        """A figure of a contender over the rounds; None where no round has it."""
        values = [value for each in self.rounds if name in each and (value := of(each[name])) is not None]
        return Spread(tuple(values)) if values else None

    def rate(self, name: str) -> Spread | None:
        """Examples/s."""
        return self.spread(name, lambda m: m.examples_per_s)

    def ratio(self, name: str, base: str, of: Callable[[Measurement], float] | None = None) -> Spread | None:
        """Paired over the rounds in which both were measured; examples/s where nothing else is asked for."""
        figure = of or (lambda m: m.examples_per_s)
        both = [each for each in self.rounds if name in each and base in each]
        return paired([figure(r[name]) for r in both], [figure(r[base]) for r in both]) if both else None

    def verdicts(self) -> list[tuple[Target, Spread | None]]:
        """Every bound of the contract and what was found."""
        found: list[tuple[Target, Spread | None]] = [(t, self.ratio(name, base)) for t, name, base in RATIOS]
        for ours, bare in BARE.items():
            target = Target(f"{CPU_TARGET}, {ours}", CPU_BOUND, "at most")
            found.append((target, self.ratio(ours, bare, lambda m: m.cpu_s_per_step)))
        firsts = [r[o].details[FIRST_STEP] for r in self.rounds for o in BARE if o in r and FIRST_STEP in r[o].details]
        found.append((FIRST_STEP_TARGET, Spread(tuple(firsts)) if firsts else None))
        found.append((SERVICE_TARGET, Spread((self.service["Rss"] / 1e6,)) if self.service else None))
        return found

    def raw(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
