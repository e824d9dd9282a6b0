"""One contender's run towards the target, and all of them in turns at one rate of the link."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.links import endless, namespaces
from benchmarks.low_communication.contenders import GROUPS, Task, spec_of
from benchmarks.measurement.millrace_runs import follow
from benchmarks.measurement.processes import MeasurementError
from trainers.events import Event

SLACK_S = 300.0
"""How much longer than its limit a run may take in all: for its start, and for its last evaluation."""


@dataclass(frozen=True)
class Finish:
    """How one run went."""

    seconds: float | None
    """From when workers begin to train to when they had the first version that reached the target; None if none did."""
    sent_bytes: int
    """Between the groups until then, or until the run's end: all that left either group."""
    metric: float
    """Of that version, or the best of all."""
    examples: int
    """Trained until then."""
    curve: tuple[tuple[float, int, float], ...] = ()
    """Of each version that was evaluated the seconds, the examples and the metric."""


@dataclass
class Found:
    """What one rate and task came to."""

    task: Task
    mbit_per_s: float
    group: int
    """Workers of each of the two groups."""
    rounds: list[dict[str, Finish]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """The last reason, by contender."""

    @property
    def title(self) -> str:
        return f"{self.mbit_per_s:g} Mbit/s, {self.task.title}"


@dataclass
class Course:
    """What is known of a run while it trains: when it had trained how much, and sent how much until then."""

    began: float
    reports: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds since then, examples, bytes."""
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    """Of each version that was evaluated the seconds when it was trained, its examples, its metric."""

    def at(self, examples: int) -> tuple[float, int]:
        """Seconds and bytes of the first report of so many examples, or of the last."""
        return next(((s, sent) for s, trained, sent in self.reports if trained >= examples), self.reports[-1][::2])

    def finish(self, task: Task) -> Finish:
        """As it stands now."""
        if not self.curve:
            raise MeasurementError("the run was not evaluated in its time")
        reached = [(examples, metric) for _, examples, metric in self.curve if task.is_reached(metric)]
        if not reached:
            best = task.best([metric for *_, metric in self.curve])
            return Finish(None, self.reports[-1][2], best, self.reports[-1][1], tuple(self.curve))
        examples, metric = reached[0]
        seconds, sent = self.at(examples)
        return Finish(seconds, sent, metric, examples, tuple(self.curve))


def watch(events: Iterable[Event], task: Task, limit_s: float, sent: Callable[[], int]) -> Finish:
    """Follow a run until an evaluation reaches the target, or its seconds or examples are used up. An evaluation comes
    later than the version it is of, since another process makes it; what counts is when that version was trained.

    sent: bytes that the groups have sent so far, ever.

    Raises:
        MeasurementError: The run failed, or ended before it was evaluated.
    """
    course, before = None, 0
    for event in events:
        if event.is_terminal and event.data["state"] != "SUCCEEDED":
            raise MeasurementError(f"the job ended as {event.data}")
        if course is None:
            if event.type == "state" and event.data["state"] == "RUNNING":
                course, before = Course(event.time, [(0.0, 0, 0)]), sent()
            continue
        seconds = event.time - course.began
        if event.type == "step":
            course.reports.append((seconds, int(event.data["examples"]), sent() - before))
        elif event.type == "evaluation":
            trained, metric = int(event.data["examples"]), float(event.data[task.metric])
            course.curve.append((course.at(trained)[0], trained, metric))
            if task.is_reached(metric):
                break
        if seconds > limit_s:
            break
    if course is None:
        raise MeasurementError("the run did not begin to train")
    return course.finish(task)


def run(name: str, task: Task, group: int, seed: int, limit_s: float, groups: Sequence[str]) -> Finish:
    """Called on the first of the nodes, with their namespaces."""

    def sent() -> int:
        return sum(map(namespaces.sent_bytes, groups))

    with endless.started(spec_of(name, task, GROUPS * group, seed), "race") as (_, folder):
        return watch(follow(folder, limit_s + SLACK_S), task, limit_s, sent)


def race(found: Found, names: Sequence[str], seeds: Sequence[int], limit_s: float) -> Found:
    """A round for each seed, in which all take turns. Called in a process of its own, which stays on the first node."""
    with namespaces.nodes(found.mbit_per_s, GROUPS, cpus=found.group) as groups:
        for turn, seed in enumerate(seeds):
            first = turn % len(names)
            found.rounds.append({})
            for name in [*names[first:], *names[:first]]:
                try:
                    finish = run(name, found.task, found.group, seed, limit_s, groups)
                except MeasurementError as error:
                    found.failures[name] = f"seed {seed}: {error}"
                    print(f"{found.title}, {name}: {error}", flush=True)
                    continue
                found.rounds[-1][name] = finish
                told = "not reached" if finish.seconds is None else f"{finish.seconds:.1f} s"
                megabytes = finish.sent_bytes / 1e6
                print(
                    f"{found.title}, seed {seed}, {name}: {told}, {megabytes:.1f} MB, {finish.metric:.3f}", flush=True
                )
    return found
