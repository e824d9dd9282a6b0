"""The tuning report as Markdown: the answer first, then the tables it rests on."""

from collections.abc import Sequence

from service.scaling.markdown import MOST_LOST, counts_told, plain, table
from service.scaling.metric import Metric
from service.scaling.statistics import CONFIDENCE
from service.tuning.importance import Importance
from service.tuning.report import Combination, Lost, TuningReport, told

MOST_SHOWN = 50
"""Combinations that are listed one by one; the JSON form has them all."""


def tuning_markdown(report: TuningReport) -> str:
    """For people. Figures are not in it: they are files of their own."""
    lines = [f"# Tuning report: {plain(report.name)}", "", counts_told(report.trials, CONFIDENCE), ""]
    lines += ["## The answer", "", *(f"- {plain(sentence)}" for sentence in report.answer), ""]
    lines += _importances(report.importances) + _combinations(report.combinations, report.question.metric)
    return "\n".join(lines + _lost(report.without_result)).rstrip() + "\n"


def _importances(found: Sequence[Importance]) -> list[str]:
    if not found:
        return []
    rows = ((one.axis, f"{one.share:.0%}", str(one.trials)) for one in found)
    return ["## How much each axis matters", "", *table(("axis", "share", "trials"), rows), ""]


def _combinations(found: Sequence[Combination], metric: Metric) -> list[str]:
    if not found:
        return []
    axes = [*dict.fromkeys(axis for one in found for axis in one.settings)]
    head = (*axes, metric.heading, "seeds")
    rows = (
        (
            *(told(one.settings[axis]) if axis in one.settings else "-" for axis in axes),
            _value(one, metric),
            _seeds(one),
        )
        for one in found[:MOST_SHOWN]
    )
    more = [f"And {len(found) - MOST_SHOWN} more.", ""] if len(found) > MOST_SHOWN else []
    return ["## All settings, the best first", "", *table(head, rows), "", *more]


def _value(one: Combination, metric: Metric) -> str:
    if one.mean is None:
        return "broke" if one.diverged else "-"
    return f"{metric.number(one.mean)}{'' if one.std is None else f' ± {metric.spread(one.std)}'}{metric.unit}"


def _seeds(one: Combination) -> str:
    others = {"diverged": one.diverged, "stopped": one.stopped, "missing": one.missing, "to come": one.unfinished}
    return ", ".join([str(one.finished), *(f"{count} {word}" for word, count in others.items() if count)])


def _lost(found: Sequence[Lost]) -> list[str]:
    if not found:
        return []
    rows = (
        (one.id, ", ".join(f"{axis} {told(value)}" for axis, value in one.settings.items()), one.outcome, one.reason)
        for one in found[:MOST_LOST]
    )
    more = [f"And {len(found) - MOST_LOST} more.", ""] if len(found) > MOST_LOST else []
    head = ("trial", "settings", "counts as", "reason")
    return ["## Trials that were not trained to their end", "", *table(head, rows), "", *more]
