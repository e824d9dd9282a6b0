"""What was measured over the links, against the bounds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.links.contenders import DDP, FAST, LIMIT, OURS, Place, bound_of
from benchmarks.links.endless import Rate
from benchmarks.links.overlap import Overlap
from benchmarks.measurement import machine
from benchmarks.measurement.comparison import VERDICTS, verdict
from benchmarks.measurement.report import as_bullets, as_table
from benchmarks.measurement.statistics import Spread, Target, paired
from benchmarks.measurement.workload import Workload, data_title

HEADER = ("contender", "examples/s", "min..max", "to DDP", "MB sent for a minibatch", "waiting")
OVERLAP = ("where", "a step, ms", "gradients in flight, ms", "of that waited for, ms", "hidden")


@dataclass
class Found:
    """What one place came to."""

    place: Place
    num_parameters: int
    rounds: list[dict[str, Rate]] = field(default_factory=list)
    overlap: Overlap | None = None
    load: str = ""
    """Of the machine before it began."""

    def ratio(self, name: str, base: str) -> Spread | None:
        """Examples/s to the base's, paired."""
        both = [r for r in self.rounds if name in r and base in r]
        return paired(*([r[n].examples_per_s for r in both] for n in (name, base))) if both else None

    def to_bound(self, work: Workload) -> Spread | None:
        """Examples/s of `sync, fast` to what computing and the links allow."""
        both = [(r[FAST].examples_per_s, r[LIMIT].examples_per_s) for r in self.rounds if FAST in r and LIMIT in r]
        bounds = [bound_of(self.place, work, limit, self.num_parameters) for _, limit in both]
        return paired([rate for rate, _ in both], bounds) if both else None

    def rows(self, work: Workload) -> list[tuple[str, ...]]:
        """A line a contender."""
        found = []
        for name in dict.fromkeys(name for each in self.rounds for name in each):
            rates = [each[name] for each in self.rounds if name in each]
            rate, ratio = Spread(tuple(r.examples_per_s for r in rates)), self.ratio(name, DDP)
            told = f"{ratio.median:.2f} ({ratio.low:.2f}..{ratio.high:.2f})" if ratio else "-"
            waiting = Spread(tuple(r.waiting for r in rates)).median
            sent = Spread(tuple(r.sent_bytes for r in rates)).median * work.minibatch / 1e6
            share = f"{waiting:.0%}" if name in OURS else "-"
            found.append(
                (name, f"{rate.median:,.0f}", f"{rate.low:,.0f}..{rate.high:,.0f}", told, f"{sent:.1f}", share)
            )
        return found

    def verdicts(self, work: Workload) -> list[tuple[str, ...]]:
        """Against the bounds of `sync, fast`."""
        where = self.place.title
        return [
            verdict(Target(f"fast to DDP, {where}", 1.0), self.ratio(FAST, DDP)),
            verdict(Target(f"fast to what computing or bytes take, {where}", 0.9), self.to_bound(work)),
        ]


def markdown(work: Workload, found: Sequence[Found], loads: tuple[str, str]) -> str:
    """The whole report."""
    settings = {
        "work": f"{work.model} on {data_title(work.data)}, minibatches of {work.minibatch}, momentum SGD; "
        "workers of one thread, one on each node where nothing else is said",
        "links": "each node is a network namespace with a cable to a switch; a token bucket at either end lets "
        "through so much each way. No delay is added: this kernel has no netem",
        "measurement": f"{work.seconds:g} s a run after {work.warmup_steps} steps of warm-up; medians over the rounds, "
        "in which contenders take turns; ratios are taken within a round. Ray's nodes are up meanwhile for everyone",
        "what computing or bytes take": "a step as long as the longer of the two: the limit's, and the bytes that an "
        "all-reduce must send at the rate of the link, headers not counted",
        "processor": "all nodes share the cores of this machine, so more nodes compute no faster",
    }
    parts = [
        "# Over slow links",
        as_bullets({**machine.describe(), "load average before": loads[0], "after": loads[1]}),
        *filter(None, [machine.disturbed(loads[0])]),
        as_bullets(settings),
    ]
    for one in found:
        told = f"{one.place.title}, {len(one.rounds)} rounds, load average before {one.load}"
        parts += [f"## {told}", as_table(HEADER, one.rows(work))]
    seen = [(one.place, one.overlap) for one in found if one.overlap is not None]
    rows = [
        (place.title, *(f"{1000 * s:,.0f}" for s in (o.step_s, o.in_flight_s, o.exposed_s)), f"{o.hidden:.0%}")
        for place, o in seen
    ]
    if rows:
        parts += ["## Overlap of `sync, fast`, from a trace of its steps", as_table(OVERLAP, rows)]
    verdicts = [line for one in found for line in one.verdicts(work)]
    return "\n\n".join([*parts, "## Against the contract", as_table(VERDICTS, verdicts)]) + "\n"


def raw(found: Sequence[Found]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(one) for one in found]


def restored(found: Sequence[dict[str, Any]]) -> list[Found]:
    """From JSON."""
    return [
        Found(
            Place(**one["place"]),
            one["num_parameters"],
            [{name: Rate(**rate) for name, rate in each.items()} for each in one["rounds"]],
            Overlap(**one["overlap"]) if one["overlap"] else None,
            one.get("load", ""),
        )
        for one in found
    ]
