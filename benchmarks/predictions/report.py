"""Predicted against measured, a row a job, and whether a plan would have named the fastest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median, quantiles

from benchmarks.measurement.report import as_bullets, as_table
from benchmarks.predictions.cases import PLACES, QUESTIONS, Case, Place, cases_of
from benchmarks.predictions.ledger import Ledger
from trainers.cost.counting import count_workload
from trainers.cost.plan import Candidate, PlanRequest, StepProfile, Timed
from trainers.cost.planner import plan_work
from trainers.cost.workload import Workload
from trainers.spec import DataSpec

MEDIAN, P90, NAMED, REGRET = 0.03, 0.06, 0.9, 0.03
LEAST_CASES = 40
ONCE = "There is one profile for all runs."
PAIRED = (
    "Each run has a profile of its own, of steps right before it, right after it, and twice in between, while it "
    "stands still; beside a second worker that computes too."
)
DIVIDED = ("hybrid", "spatial")
"""Which divide the layers of the model, each in its own way: what they do is counted by itself."""
OF_A_SIZE = "mnist"
"""Whose images have the size of those that are trained, MNIST's or digits enlarged to it, so that nothing is read."""


@dataclass(frozen=True)
class Row:
    """One job."""

    case: Case
    rates: tuple[float, ...]
    """Measured, examples a second."""
    predictions: tuple[Candidate, ...]
    """Of each of these runs, from the profile of its own minute."""

    @property
    def measured(self) -> float:
        return median(self.rates)

    @property
    def predicted(self) -> float:
        return median(each.examples_per_s for each in self.predictions)

    @property
    def interval(self) -> tuple[float, float]:
        """Between which nine runs of ten are said to lie."""
        found = [(each.least_per_s or 0.0, each.most_per_s or 0.0) for each in self.predictions]
        return median(least for least, _ in found), median(most for _, most in found)

    @property
    def errors(self) -> list[float]:
        """Of the predictions, as a share of what was measured."""
        return [each.examples_per_s / rate - 1 for each, rate in zip(self.predictions, self.rates, strict=True)]

    @property
    def error(self) -> float:
        """The median."""
        return median(self.errors)

    @property
    def spread(self) -> float:
        """From the slowest measurement to the fastest, as a share of the median."""
        return (max(self.rates) - min(self.rates)) / self.measured

    @property
    def verdict(self) -> str:
        """Whether the prediction is within the bound; where it is not, whether the runs are further apart than that."""
        if abs(self.error) <= P90:
            return "within"
        differs = max(self.errors) - min(self.errors)
        return f"runs differ by {differs:.0%}" if differs > P90 else "**off**"


@dataclass(frozen=True)
class Answer:
    """Which of some jobs a plan would have named, and which was the fastest."""

    place: Place
    question: str
    named: Row
    fastest: Row

    @property
    def regret(self) -> float:
        """What is lost with the job that was named, as a share of the fastest rate."""
        return 1 - self.named.measured / self.fastest.measured

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        return self.place.title, self.question, _name(self.named), _name(self.fastest), f"{self.regret:.1%}"


def beside_each_other(profile: StepProfile) -> StepProfile:
    """Of a worker on a node whose neighbour is the other node: both are this machine."""
    parts = {
        name: Timed(median_s=profile.contention * part.seconds, spread_s=profile.contention * part.spread_s)
        for name in ("data", "forward", "backward", "update")
        if isinstance(part := getattr(profile, name), Timed)
    }
    return profile.model_copy(update=parts)


@dataclass(frozen=True)
class Comparison:
    """All that the ledger has, against what the model says now: nothing of it is fitted."""

    ledger: Ledger

    @cached_property
    def rows(self) -> list[Row]:
        """Of all jobs that were measured."""
        return [row for place in PLACES for row in self._at(place)]

    def _at(self, place: Place) -> Iterator[Row]:
        common, links = self.ledger.profile, self.ledger.links(place)
        if links is None:
            return
        if common is not None and place.gb_per_s is not None:
            common = beside_each_other(common)
        counted = dict[str, Workload]()
        for case in cases_of(place):
            runs = [(run.examples_per_s, run.profile or common) for run in self.ledger.runs(case)]
            if not runs:
                continue
            spec, found = case.spec, list[Candidate]()
            divides = case.algorithm if case.algorithm in DIVIDED else ""
            if divides not in counted:
                counted[divides] = count_workload(spec.model_copy(update={"data": DataSpec(name=OF_A_SIZE)}))
            for _, profile in runs:
                request = PlanRequest(profile=profile, links=links, workers=(spec.workers.count,))
                found += plan_work(spec, counted[divides], request).candidates
            yield Row(case, tuple(rate for rate, _ in runs), tuple(found))

    @cached_property
    def answers(self) -> list[Answer]:
        """Of each question at each place at which two of its jobs were measured."""
        found = list[Answer]()
        for place in PLACES:
            here = [row for row in self.rows if row.case.place == place]
            for question, names in QUESTIONS.items():
                among = [row for row in here if row.case.algorithm in names and row.case.transport == "auto"]
                found += _answered(place, question, among)
            for name in dict.fromkeys(row.case.algorithm for row in here if row.case.transport != "auto"):
                found += _answered(place, f"by which transport: {name}", [r for r in here if r.case.algorithm == name])
        return found

    @property
    def verdicts(self) -> Iterator[tuple[str, str, str, bool]]:
        """What, the bound, what was found, and whether that is within."""
        errors = [abs(row.error) for row in self.rows]
        nine = quantiles(errors, n=10)[-1] if len(errors) > 1 else errors[0]
        yield "jobs", f"at least {LEAST_CASES}", f"{len(errors)}", len(errors) >= LEAST_CASES
        yield "median error", f"{MEDIAN:.0%}", f"{median(errors):.1%}", median(errors) <= MEDIAN
        yield "error of nine in ten", f"{P90:.0%}", f"{nine:.1%}", nine <= P90
        right = [answer.named is answer.fastest for answer in self.answers]
        share = sum(right) / max(1, len(right))
        told = f"{share:.0%} of {len(right)}"
        yield "the fastest is named", f"{NAMED:.0%}", told, share >= NAMED
        worst = max((answer.regret for answer in self.answers), default=0.0)
        yield "regret where it is not", f"{REGRET:.0%}", f"at most {worst:.1%}", worst <= REGRET

    def tables(self, level: int = 2) -> list[str]:
        """The bounds, each job, and each question, under headings of a level; there is at least one row."""
        return [
            as_table(("what", "bound", "found", "verdict"), [
                (what, bound, found, "met" if met else "**missed**") for what, bound, found, met in self.verdicts
            ]),
            f"{'#' * level} Predicted and measured",
            as_table(
                ("job", "transport", "links", "measured", "its spread", "predicted", "nine of ten", "error", ""),
                [_cells(row) for row in self.rows],
            ),
            f"{'#' * level} The fastest of some",
            as_table(
                ("links", "question", "named", "fastest", "regret"),
                [answer.cells for answer in self.answers],
            ),
        ]  # fmt: skip

    def markdown(self) -> str:
        """All of it; there is at least one row."""
        commits = dict.fromkeys(record["commit"] for record in self.ledger.records("rate"))
        about = {**self.ledger.machine, "measured at": ", ".join(commits)}
        how = PAIRED if any(run.profile for row in self.rows for run in self.ledger.runs(row.case)) else ONCE
        parts = [
            "# The cost model against runs on throttled links",
            as_bullets(about),
            "`millrace plan` predicts two workers from the profile of one and from the links as `millrace links` has "
            f"measured them; nothing is fitted. {how} The nodes are network namespaces on one machine, with a token "
            "bucket on each link. Rates are examples a second, and errors the median over the runs of a job. Where "
            "that is above the bound for nine in ten, the last column tells whether the runs differ by more than the "
            "bound, each against its own prediction.",
            *self.tables(),
        ]
        measured = {row.case.key for row in self.rows}
        failed = [record for record in self.ledger.records("failed") if record["case"] not in measured]
        if failed:
            parts += ["## What failed", "\n".join(f"- {one['case']}: {one['why'].splitlines()[-1]}" for one in failed)]
        return "\n\n".join(parts) + "\n"


def _answered(place: Place, question: str, among: Sequence[Row]) -> list[Answer]:
    if len(among) < 2:
        return []
    named = max(among, key=lambda row: row.predicted)
    return [Answer(place, question, named, max(among, key=lambda row: row.measured))]


def _name(row: Row) -> str:
    return row.case.algorithm if row.case.transport == "auto" else f"{row.case.algorithm}, {row.case.transport}"


def _cells(row: Row) -> tuple[str, ...]:
    least, most = row.interval
    return (
        row.case.algorithm, row.case.transport, row.case.place.title, f"{row.measured:,.0f}", f"{row.spread:.1%}",
        f"{row.predicted:,.0f}", f"{least:,.0f} to {most:,.0f}", f"{row.error:+.1%}", row.verdict,
    )  # fmt: skip
