"""A run on a terminal: bars for people, plain lines for pipes and logs. Both read events and nothing else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

import service

LINE_EVERY_S = 3.0
WIDTH = 160
"""Columns of a table where the output is no terminal."""


class Display(Protocol):
    """Shows a run while it goes on."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, event: service.Event) -> None:
        """Take in one more event."""

    def say(self, line: str) -> None:
        """A sentence beside the run's own."""


def display(stream: TextIO, epochs: int) -> Display:
    """BarDisplay where somebody looks, lines where not."""
    return BarDisplay(stream, epochs) if stream.isatty() else LineDisplay(stream, epochs)


class LineDisplay:
    """One line every few seconds and at each evaluation."""

    def __init__(self, stream: TextIO, epochs: int) -> None:
        self.stream = stream
        self.epochs = epochs
        self.figures = service.Progress()
        self.printed_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, event: service.Event) -> None:
        """Print what is worth a line."""
        self.figures.add(event)
        if event.type == "evaluation":
            self.say(evaluation_line(event))
        elif event.type == "step" and time.monotonic() - self.printed_s >= LINE_EVERY_S:
            self.printed_s = time.monotonic()
            self.say(step_line(self.figures, self.epochs))
        elif (line := service.log_line(event)) is not None:
            self.say(line)

    def say(self, line: str) -> None:
        """Print a line at once, also into a pipe."""
        print(line, file=self.stream, flush=True)


class BarDisplay:
    """One bar over all epochs with the figures beside it; everything else scrolls above."""

    def __init__(self, stream: TextIO, epochs: int) -> None:
        self.epochs = epochs
        self.figures = service.Progress()
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[figures]}", markup=False),
            console=Console(file=stream),
        )
        self.task = self.bars.add_task("waiting", total=1.0, figures="")

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def show(self, event: service.Event) -> None:
        """Move the bar."""
        self.figures.add(event)
        if event.type == "evaluation":
            self.say(evaluation_line(event))
        elif (line := service.log_line(event)) is not None:
            self.say(line)
        figures = self.figures
        self.bars.update(
            self.task,
            completed=figures.fraction(self.epochs),
            description=_place(figures, self.epochs) if figures.metrics else str(figures.state).lower(),
            figures=_figures_line(figures, self.epochs),
        )

    def say(self, line: str) -> None:
        """Print a line above the bar; nothing in it is markup."""
        self.bars.console.print(Text(line))


def step_line(figures: service.Progress, epochs: int) -> str:
    """Where a run is, on one line."""
    return f"{_place(figures, epochs)}  {_figures_line(figures, epochs)}"


def _place(figures: service.Progress, epochs: int) -> str:
    """How far a run is that has begun to train; epochs: of its spec."""
    assert figures.metrics is not None
    return f"epoch {figures.metrics.epoch:.2f}/{figures.metrics.run_epochs or epochs:g}"


def evaluation_line(event: service.Event) -> str:
    """An evaluation, on one line."""
    data = event.data
    metrics = service.measured_in(data)
    first = ("accuracy", "loss")  # then the others as the task names them
    order = [*(name for name in first if name in metrics), *(name for name in metrics if name not in first)]
    return f"epoch {_epoch(data['epoch'])}  " + "  ".join(
        f"{service.set_of(data)} {_words(name)} {_number(metrics[name])}" for name in order
    )


def wide_console(width: int = WIDTH) -> Console:
    """The output stream; where that is no terminal, it has so many columns."""
    return Console(width=None if sys.stdout.isatty() else width)


def id_column(name: str, ids: Iterable[str]) -> Column:
    """A column whose ids stand there whole, so that they can be copied: the others give way."""
    return Column(name, no_wrap=True, min_width=max(map(len, ids), default=0))


def duration(seconds: float) -> str:
    """For people: 42 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def day(when: float) -> str:
    """A moment, in seconds since 1970, as the clock here says."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))


def _figures_line(figures: service.Progress, epochs: int) -> str:
    metrics = figures.metrics
    if metrics is None:
        return ""
    parts = [f"{metrics.examples:,} examples", f"{metrics.examples_per_s:,.0f}/s", f"loss {_number(metrics.loss)}"]
    if figures.headline is not None:
        (name, value), which = figures.headline, service.set_of(figures.evaluation or {})
        parts.append(f"{f'{which} ' * (name == 'loss')}{_words(name)} {_number(value)}")
    if (eta_s := figures.eta_s(epochs)) is not None:
        parts.append(f"{duration(eta_s)} left")
    return "  ".join(parts)


def _epoch(epoch: float) -> str:
    """With its fraction where it was under way."""
    return f"{epoch:.0f}" if epoch == int(epoch) else f"{epoch:.2f}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
