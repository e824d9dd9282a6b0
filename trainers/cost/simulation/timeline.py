"""Who does what when in one simulated step: what a Gantt chart draws, as plain values and as text. Imports no torch."""

from collections.abc import Iterable, Iterator

from trainers.cost.figures import Figures

SHOWN = 12
"""Workers of a timeline; of more of them some are left out."""
MARKS = "#=+~*o%&@"
"""Of what somebody does, in text, in the order in which it first happens."""
WAITS = "waits"


class Span(Figures):
    """What somebody does for a while."""

    what: str
    begin_s: float
    """Since the timeline's beginning."""
    end_s: float


class Track(Figures):
    """One row."""

    who: str
    """A worker, a shard, or the links."""
    spans: tuple[Span, ...]
    """In their order; between them nothing is done."""


class Timeline(Figures):
    """A row for each worker, shard and kind of link."""

    seconds: float
    steps: int
    """Of a worker, in that time: more than one where workers meet, fetch or push less often."""
    tracks: tuple[Track, ...]
    left_out: int = 0
    """Workers that have no row."""

    @property
    def kinds(self) -> list[str]:
        """What is done, each once."""
        return list(dict.fromkeys(span.what for track in self.tracks for span in track.spans))


def chosen(count: int, shown: int = SHOWN) -> list[int]:
    """Of so many in a row: all, or some at equal distances, the first and the last among them."""
    if count <= shown:
        return list(range(count))
    return [round(index * (count - 1) / (shown - 1)) for index in range(shown)]


def track(who: str, spans: Iterable[tuple[str, float, float]], since_s: float, seconds: float) -> Track:
    """A row of what happened within so many seconds of a moment; what follows at once and is the same is one span."""
    found = list[Span]()
    for what, begin, end in spans:
        first, last = max(0.0, begin - since_s), min(seconds, end - since_s)
        if last <= first:
            continue
        if found and found[-1].what == what and first - found[-1].end_s <= 1e-9 * seconds:
            first = found.pop().begin_s
        found.append(Span(what=what, begin_s=first, end_s=last))
    return Track(who=who, spans=tuple(found))


def as_text(timeline: Timeline, columns: int = 64) -> Iterator[str]:
    """A line for each row, and what the marks mean."""
    marks = dict(zip((kind for kind in timeline.kinds if kind != WAITS), MARKS, strict=False)) | {WAITS: "."}
    width = max(len(one.who) for one in timeline.tracks)
    for one in timeline.tracks:
        line = [" "] * columns
        for span in one.spans:
            first, last = (round(at / timeline.seconds * columns) for at in (span.begin_s, span.end_s))
            for column in range(first, min(columns, max(last, first + 1))):
                line[column] = marks.get(span.what, "?")
        yield f"{one.who:{width}} |{''.join(line)}|"
    yield f"{'':{width}} 0 to {1000 * timeline.seconds:,.3g} ms: " + ", ".join(
        f"{mark} {kind}" for kind, mark in marks.items() if kind in timeline.kinds
    )
