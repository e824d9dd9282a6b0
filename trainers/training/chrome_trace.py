"""What PyTorch's profiler has recorded of some steps, as a small Chrome trace: the format of Perfetto and
`chrome://tracing` ("Trace Event Format", Google 2016)."""

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from trainers.spans import Part

MOST_EVENTS = 200_000
"""Of a trace; what goes beyond is cut at the end of a step. A browser draws so many, in about 3 MB."""
OURS = "millrace"
"""The category of our own spans."""
PARTS = frozenset(get_args(Part))
PLAIN = frozenset({"cpu_op", "user_annotation", OURS})
"""The categories whose arguments are the profiler's own numbers."""


@dataclass(frozen=True)
class Recording:
    """What the events do not tell."""

    label: str
    """Whose: the worker's name."""
    steps: int
    """Complete ones."""
    thread: int
    """That has made them."""
    threads: Mapping[int, str]
    """The names of threads that are there, by number."""


def chrome_trace(raw: Mapping[str, Any], recording: Recording) -> tuple[int, bytes]:
    """How many steps the trace has, and the trace itself, compressed with gzip. Its time begins with its first step."""
    events: list[dict[str, Any]] = [dict(event) for event in raw["traceEvents"]]
    for event in events:
        if event.get("cat") == "user_annotation" and event["name"] in PARTS:
            event["cat"] = OURS
    steps = [e for e in events if e.get("cat") == OURS and e["name"] == "step" and e.get("tid") == recording.thread]
    ends = [step["ts"] + step["dur"] for step in sorted(steps, key=_time)[: recording.steps]]
    begin = min(map(_time, steps))
    ends = ends[: _fitting([event["ts"] for event in events if event["ph"] != "M"], begin, ends)]
    kept = [_tidy(event, begin) for event in events if event["ph"] != "M" and begin <= event["ts"] < ends[-1]]
    whole = {
        "displayTimeUnit": "ms",
        "otherData": {"worker": recording.label, "steps": len(ends)},
        "traceEvents": [*_names(events, kept, recording), *kept],
    }
    return len(ends), gzip.compress(json.dumps(whole, separators=(",", ":")).encode(), mtime=0)


def _time(event: Mapping[str, Any]) -> float:
    found: float = event["ts"]
    return found


def _fitting(times: Iterable[float], begin: float, ends: list[float]) -> int:
    """How many of the steps that end then have few enough events together; one at least."""
    inside = sorted(time for time in times if time >= begin)
    if len(inside) <= MOST_EVENTS:
        return len(ends)
    return max(1, sum(end <= inside[MOST_EVENTS] for end in ends))


def _tidy(event: dict[str, Any], begin: float) -> dict[str, Any]:
    """The event without what only the profiler itself needs; times in microseconds from the first step on."""
    found = {name: value for name, value in event.items() if name != "args" or event.get("cat") not in PLAIN}
    found["ts"] = round(event["ts"] - begin, 3)
    if "dur" in event:
        found["dur"] = round(event["dur"], 3)
    return found


def _names(
    events: Iterable[Mapping[str, Any]], kept: Iterable[Mapping[str, Any]], recording: Recording
) -> list[dict[str, Any]]:
    """The names of the processes and threads that have events, the training thread first."""
    own = next(e["pid"] for e in events if e.get("tid") == recording.thread)
    places = {(event["pid"], event["tid"]) for event in kept}
    found = [_name("process_name", own, 0, recording.label)]
    for pid, tid in sorted(places, key=lambda place: (str(place[0]), place[1] != recording.thread, str(place[1]))):
        if pid == own:
            found.append(_name("thread_name", own, tid, recording.threads.get(tid, f"thread {tid}")))
            order = 0 if tid == recording.thread else 1 + len(found)
            found.append(
                {"ph": "M", "name": "thread_sort_index", "pid": own, "tid": tid, "args": {"sort_index": order}}
            )
    places |= {(pid, 0) for pid, _ in places}
    fields = ("ph", "name", "pid", "tid", "args")
    gpus = [e for e in events if e["ph"] == "M" and e["pid"] != own and (e["pid"], e["tid"]) in places]
    return found + [{name: event[name] for name in fields} for event in gpus]  # as the profiler names them


def _name(kind: str, pid: Any, tid: Any, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
