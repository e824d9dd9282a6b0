"""The scaling report as Markdown: the answer first, then the tables it rests on."""

from collections.abc import Iterable, Mapping, Sequence

from service.scaling.cells import Cell, Outcome
from service.scaling.gaps import Gap
from service.scaling.metric import Metric
from service.scaling.proxy import Proxy, Saved
from service.scaling.rates import BatchRates
from service.scaling.report import ScalingReport, VariantReport
from service.scaling.targets import TimeToTarget

MOST_LOST = 20
"""Trials without a result that are listed one by one; the JSON form has them all."""


def markdown(report: ScalingReport) -> str:
    """For people. Figures are not in it: they are files of their own."""
    lines = [f"# Scaling report: {plain(report.name)}", "", counts_told(report.trials, report.confidence), ""]
    for variant in report.variants:
        lines += _variant(variant, report.question.metric, several=len(report.variants) > 1)
    if not report.variants:
        lines += ["There are no trials.", ""]
    lines += _lost(report) + _saved(report.saved)
    return "\n".join(lines).rstrip() + "\n"


def _variant(variant: VariantReport, metric: Metric, several: bool) -> list[str]:
    lines = [f"## With {_settings(variant.variant) or 'the spec as it is'}", ""] if several else []
    lines += ["## The answer", "", *(f"- {sentence}" for sentence in variant.answer), ""]
    lines += [f"## {_capital(metric.name)} by batch and rule", "", *_errors(variant.cells, metric), ""]
    lines += [f"{_capital(plain(metric.explained))}.", ""]
    lines += ["## The best rate at each batch", "", *_rates(variant.rates), ""]
    if variant.targets:
        lines += [
            f"## Until {metric.reaching(variant.targets[0].target_error)}",
            "",
            *_targets(variant.targets),
            "",
        ]
    if variant.proxy is not None:
        lines += ["## Training curves as a proxy", "", _proxy(variant.proxy), ""]
    return lines + _gaps(variant.gaps)


def counts_told(trials: Mapping[Outcome, int], confidence: float) -> str:
    """How many trials came to what, and how sure the rest is."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in trials.items() if count)
    sides = f"{confidence:.0%}"
    return (
        f"{counts or 'No trial'}. An interval's sides hold with {sides} confidence each; ± is one standard deviation."
    )


def _errors(cells: Sequence[Cell], metric: Metric) -> list[str]:
    excess = "worse than the baseline by" if metric.higher_is_better else "above the baseline"
    head = ("batch", "rule", "warm-up", "rate", plain(metric.heading), "seeds", excess, "verdict")
    return table(head, (_error_row(cell, metric) for cell in cells))


def _error_row(cell: Cell, metric: Metric) -> tuple[str, ...]:
    between = "" if cell.low is None else f" ({metric.spread(cell.low)} to {metric.spread(cell.high or 0.0)})"
    counts = {"diverged": cell.diverged, "stopped": cell.stopped, "missing": cell.missing, "to come": cell.unfinished}
    seeds = ", ".join([str(cell.finished), *(f"{count} {word}" for word, count in counts.items() if count)])
    excess = "-" if cell.excess is None else f"{metric.spread(cell.excess, '+')}{between}"
    spread = "" if cell.std is None else f" ± {metric.spread(cell.std)}"
    none = "broke" if cell.diverged else "-"
    error = none if cell.mean is None else f"{metric.number(cell.mean)}{spread}{metric.unit}"
    return str(cell.batch), cell.rule, cell.warmup, f"{cell.lr:.4g}", error, seeds, excess, cell.verdict


def _rates(rows: Sequence[BatchRates]) -> list[str]:
    head = ("batch", "tried", "best", "as good", "none predicts", "sqrt predicts", "linear predicts", "agrees with")
    return table(head, (_rate_row(row) for row in rows))


def _rate_row(row: BatchRates) -> tuple[str, ...]:
    tried, good = {t.lr for t in row.tried}, {t.lr for t in row.tried if t.as_good}
    best = "-" if row.best_lr is None else f"{row.best_lr:.4g}"
    predicted = [f"{row.predicted[rule]:.4g}" for rule in ("none", "sqrt", "linear")]
    return str(row.batch), _numbers(tried), best, _numbers(good) or "-", *predicted, ", ".join(row.agrees) or "-"


def _targets(rows: Sequence[TimeToTarget]) -> list[str]:
    head = ("batch", "rule", "warm-up", "reached", "seconds", "improvement", "examples", "updates", "fewer updates")
    return table(head, (_target_row(row) for row in rows if row.multiple == 1))


def _target_row(row: TimeToTarget) -> tuple[str, ...]:
    seconds = "-" if row.seconds is None else _with_spread(row.seconds, row.seconds_std, ".3g")
    examples = "-" if row.examples is None else f"{row.examples:.0f}"
    updates = "-" if row.updates is None else f"{row.updates:.0f}"
    ratios = ["-" if ratio is None else f"{ratio:.2f}" for ratio in (row.improvement, row.fewer_updates)]
    reached = f"{row.reached} of {row.of}"
    return str(row.batch), row.rule, row.warmup, reached, seconds, ratios[0], examples, updates, ratios[1]


def _proxy(proxy: Proxy) -> str:
    at = "" if proxy.stopped_at is None else f" It decides after {proxy.stopped_at:.0%} of the epochs, in the mean."
    found = f"{proxy.worse_stopped} of the {proxy.worse} trials that ended worse than the tolerance allows"
    false = f"{proxy.as_good_stopped} of the {proxy.as_good} that did not"
    saved = f"{proxy.would_save:.0%} of these trials' examples"
    return f"Stopping by `diverges_from_baseline` would have stopped {found}, and {false}; it would save {saved}.{at}"


def _gaps(gaps: Sequence[Gap]) -> list[str]:
    if not gaps:
        return []
    lines = ["## What this does not tell, and what would", ""]
    for gap in gaps:
        lines.append(f"- {_capital(plain(gap.message))}.")
        for p in gap.proposals:
            time = "" if p.about_s is None else f", about {p.about_s:.0f} s in all"
            method = f"{p.rule}, warm-up {plain(p.warmup)}, rate {p.lr:.4g}"
            lines.append(f"  - Add batch {p.batch}, {method}, seeds {_numbers(p.seeds)}{time}: {p.why}.")
    return [*lines, ""]


def _lost(report: ScalingReport) -> list[str]:
    if not report.without_result:
        return []
    head = ("trial", "batch", "rule", "seed", "counts as", "state", "reason")
    without = report.without_result
    shown = without[:MOST_LOST]
    rows = ((t.id, str(t.batch), t.method, str(t.seed), t.outcome, t.state, t.reason) for t in shown)
    more = [f"And {len(without) - len(shown)} more.", ""] if len(without) > len(shown) else []
    return ["## Trials that broke or did not finish", "", *table(head, rows), "", *more]


def _saved(saved: Saved) -> list[str]:
    if not saved.trials:
        return []
    stopped = f"{saved.trials} trials were stopped because their curve had left the baseline's"
    left = f"{saved.examples} examples, about {saved.seconds:.0f} s, were not trained"
    return ["## Compute saved", "", f"{stopped}: {left}, {saved.share:.0%} of what the trials would have taken."]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [_line(head), _line(["---"] * len(head))]
    return [*lines, *(_line([plain(text) for text in row]) for row in rows)]


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def plain(text: str) -> str:
    """In one line, and in one field of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _with_spread(value: float, spread: float | None, form: str) -> str:
    return format(value, form) + ("" if spread is None else f" ± {format(spread, form)}")


def _settings(variant: dict[str, str]) -> str:
    return plain(", ".join(f"{path} = {value}" for path, value in variant.items()))


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in sorted(values))


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
