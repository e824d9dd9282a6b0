"""A study as tables: of the rate (paper 3, table I), of the error (paper 1, table 1), of the time to a target (paper 3,
table II)."""

from collections.abc import Iterable, Iterator, Sequence

from service.scaling.metric import Metric
from service.speedup.study import Study, StudyRow

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, headings, rows."""


def study_tables(study: Study) -> Iterator[Table]:
    """Those of which something is known."""
    rows = study.rows
    yield (
        "Rate",
        ("workers", "batch", "examples/s", "predicted", "off", "speed-up", "predicted", "efficiency", "run"),
        [
            (
                str(row.workers), f"{row.batch:,}", _rate(row.examples_per_s), _rate(row.predicted_per_s),
                "-" if row.off is None else f"{row.off:+.1%}", _times(row.speed_up), _times(row.predicted_speed_up),
                "-" if row.efficiency is None else f"{row.efficiency:.0%}", row.state.lower(),
            )
            for row in rows
        ],
    )  # fmt: skip
    if any(row.train_s is not None for row in rows):
        heads = ("workers", "batch", study.metric.heading, "time, s", "speed-up of the time")
        yield "Error and time", heads, [_error_cells(row, study.metric, rows) for row in rows]
    if study.target is not None:
        heads = ("workers", "time to it, s", "predicted, s", "examples", "improvement")
        yield f"Time to {study.metric.reaching(study.target)}", heads, [_target_cells(row) for row in rows]


def study_page(study: Study) -> str:
    """Markdown."""
    parts = [f"# {study.name}: what more workers bring", f"Algorithm: `{study.algorithm}`."]
    for title, heads, rows in study_tables(study):
        parts += [f"## {title}", _markdown(heads, rows)]
    return "\n\n".join([*parts, *(f"{note[0].upper()}{note[1:]}." for note in study.notes)]) + "\n"


def _error_cells(row: StudyRow, metric: Metric, rows: Sequence[StudyRow]) -> tuple[str, ...]:
    base = next(one.train_s for one in rows if one.train_s is not None)
    faster = None if row.train_s is None else base / row.train_s
    return str(row.workers), f"{row.batch:,}", metric.told(row.cost), _seconds(row.train_s), _times(faster)


def _target_cells(row: StudyRow) -> tuple[str, ...]:
    missed = "not reached" if row.train_s is not None else "unknown"
    examples = "-" if row.target_examples is None else f"{row.target_examples:,}"
    predicted = "unknown" if row.predicted_target_s is None else _seconds(row.predicted_target_s)
    reached = missed if row.target_s is None else _seconds(row.target_s)
    return str(row.workers), reached, predicted, examples, _times(row.improvement)


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---:"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
