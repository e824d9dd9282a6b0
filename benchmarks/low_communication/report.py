"""Who reached the target, how soon and with how many bytes."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.low_communication.contenders import CONTENDERS, EVALUATED, SYNC, spec_of
from benchmarks.low_communication.race import Finish, Found
from benchmarks.measurement import machine
from benchmarks.measurement.report import as_bullets, as_table
from benchmarks.measurement.statistics import Spread

HEADER = (
    "contender",
    "reached it",
    "seconds to the target",
    "min..max",
    "time to sync's",
    "MB between the groups",
    "bytes to sync's",
    "examples",
    "metric at the end",
)
VERDICTS = ("what", "median", "min..max", "verdict")
Figures = dict[str, float]


def seconds(finish: Finish) -> float:
    """Without end where the target was not reached."""
    return math.inf if finish.seconds is None else finish.seconds


def names_of(found: Found) -> list[str]:
    """Who finished a run, in the order of CONTENDERS."""
    return [name for name in CONTENDERS if any(name in each for each in found.rounds)]


def time_ratio(found: Found, name: str) -> Spread | None:
    """Seconds to sync's, paired by round: infinite where the contender did not reach the target, 0 where only sync did
    not; rounds in which neither did are left out."""
    both = [(seconds(r[name]), seconds(r[SYNC])) for r in found.rounds if name in r and SYNC in r]
    ratios = tuple(ours / base for ours, base in both if math.isfinite(min(ours, base)))
    return Spread(ratios) if ratios else None


def bytes_ratio(found: Found, name: str) -> Spread | None:
    """Bytes to the target to sync's, of rounds in which both reached it."""
    both = [(r[name], r[SYNC]) for r in found.rounds if name in r and SYNC in r]
    reached = [(ours, base) for ours, base in both if None not in (ours.seconds, base.seconds)]
    return Spread(tuple(ours.sent_bytes / base.sent_bytes for ours, base in reached)) if reached else None


def rows(found: Found) -> list[tuple[str, ...]]:
    """A line a contender."""
    lines = []
    for name in names_of(found):
        runs = [each[name] for each in found.rounds if name in each]
        time = Spread(tuple(map(seconds, runs)))
        reached = sum(run.seconds is not None for run in runs)
        sent, trained, metric = (
            Spread(tuple(values)).median
            for values in zip(*((r.sent_bytes, r.examples, r.metric) for r in runs), strict=True)
        )
        spread = f"{_told(time.low)}..{_told(time.high)}"
        figures = (_ratio(time_ratio(found, name)), f"{sent / 1e6:,.1f}", _ratio(bytes_ratio(found, name)))
        lines.append(
            (
                name,
                f"{reached} of {len(runs)}",
                _told(time.median),
                spread,
                *figures,
                f"{trained:,.0f}",
                f"{metric:.3f}",
            )
        )
    return lines


def verdicts(found: Found) -> list[tuple[str, ...]]:
    """Of each contender but sync: whether it is sooner at the target, and whether with fewer bytes."""
    lines = []
    for name in names_of(found):
        pairs = (("sooner than", time_ratio(found, name)), ("fewer bytes than", bytes_ratio(found, name)))
        for word, ratio in pairs if name != SYNC else ():
            what = f"{name}: {word} sync, {found.title}"
            if ratio is None:
                lines.append((what, "-", "-", "no round tells: one of them or both did not reach the target"))
                continue
            holds = "**does not hold**" if ratio.median >= 1 else "holds"
            holds += "" if ratio.high < 1 or ratio.low >= 1 else ", not in every round"
            lines.append((what, f"{ratio.median:.2f}", f"{ratio.low:.2f}..{ratio.high:.2f}", holds))
    return lines


def never(found: Found) -> dict[str, str]:
    """Who never reached the target, and what they came to."""
    runs = {name: [each[name] for each in found.rounds if name in each] for name in names_of(found)}
    return {
        name: f"never reached it; at best {found.task.best([run.metric for run in each]):.3f}"
        for name, each in runs.items()
        if all(run.seconds is None for run in each)
    }


def markdown(races: Sequence[Found], limit_s: float, loads: tuple[str, str]) -> str:
    """The whole report."""
    group = races[0].group
    settings = {
        "workers": f"two groups of {group}, one thread each. Each group is a node of Ray in a network namespace; a "
        "token bucket at either end lets through so much each way. No delay is added. All share the cores of this "
        "machine",
        "runs": f"a run ends with the first evaluation that reaches the target. All evaluate as often, by examples: "
        f"every {EVALUATED} steps of all workers. Whoever has trained all its examples, or for {limit_s:g} s, has not "
        "reached it",
        "seconds": "from when the workers begin to train to when they had the version that reached the target. A "
        "process of its own evaluates versions, on the same cores. Making one is part of the time and of the bytes: "
        "all state is gathered for it, the optimizers' too, which `diloco` has one of a worker; and sums that travel "
        "are waited for, so that streaming hides less than it would",
        "bytes": "counted at the namespaces' interfaces, both ways: with headers, repeats, and what Ray sends itself",
        "rounds": "contenders take turns in a round of one seed; ratios are taken within a round. `inf`: not reached; "
        "a ratio of 0.00: only sync did not reach it",
    }
    parts = [
        "# Low communication: time and bytes to a target",
        as_bullets({**machine.describe(), "load average before": loads[0], "after": loads[1]}),
        *filter(None, [machine.disturbed(loads[0])]),
        as_bullets(settings),
    ]
    for found in races:
        parts += [f"## {found.title}, {len(found.rounds)} rounds", as_table(HEADER, rows(found))]
        parts += [as_bullets(each) for each in (never(found), found.failures) if each]
    lines = [line for found in races for line in verdicts(found)]
    parts += ["## What each is for", as_table(VERDICTS, lines), "## Settings"]
    parts += [as_bullets(_settings(found)) for found in {found.task: found for found in races}.values()]
    return "\n\n".join(parts) + "\n"


def raw(races: Sequence[Found]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(found) for found in races]


def _settings(found: Found) -> dict[str, str]:
    told = {}
    for name in names_of(found):
        spec = spec_of(name, found.task, 2 * found.group, seed=0)
        rate = f"AdamW at {spec.optimizer.lr:g}, minibatches of {found.task.batch}"
        algorithm, compress = CONTENDERS[name].algorithm, CONTENDERS[name].compress
        told[f"{found.task.data}, {name}"] = f"`{json.dumps(algorithm)}`, {rate}" + (
            f", `{compress}`" if compress else ""
        )
    return told


def _told(value: float) -> str:
    return f"{value:,.1f}"


def _ratio(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f} ({spread.low:.2f}..{spread.high:.2f})"
