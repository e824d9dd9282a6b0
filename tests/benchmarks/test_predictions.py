"""The benchmark that holds plans against runs on throttled links: its cases, its ledger, its report."""

import json
from pathlib import Path

import pytest

from benchmarks import plan
from benchmarks.links import namespaces
from benchmarks.measurement import machine
from benchmarks.measurement.processes import MeasurementError, alone
from benchmarks.predictions.__main__ import main
from benchmarks.predictions.cases import ALGORITHMS, PLACES, Case, Place, cases_of, workload
from benchmarks.predictions.ledger import Ledger
from benchmarks.predictions.measuring import LEAST_MINIBATCHES, Times, _part, measure_place
from benchmarks.predictions.report import Comparison
from benchmarks.predictions.yardstick import LEAST, yardstick
from tests.cost.test_links import link, table
from tests.cost.test_planning import profile_of
from trainers.cost.search import NAMES
from trainers.events import Event, Metrics

ONE = Place()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """With a profile and the links of a place."""
    found = Ledger(tmp_path / "ledger.jsonl")
    profile = profile_of(Case("sync", "auto", ONE).spec)
    found.add("profile", profile=profile.model_dump(mode="json"), machine={"processor": "p"}, load="0")
    messages = (link("process_group", "aa", 1, 1e-4, 2e9), link("object_store", "aa", 1, 1e-3, 1e9))
    found.add("links", place=ONE.title, links=table(1, messages).model_dump(mode="json"), load="0")
    return found


def measured(ledger: Ledger, case: Case, *rates: float) -> None:
    for rate in rates:
        ledger.add("rate", case=case.key, examples_per_s=rate, waiting=0.0, commit="c", load="0")


def test_the_cases_are_all_algorithms_by_all_transports_over_four_rates() -> None:
    cases = [case for place in PLACES for case in cases_of(place)]
    assert len(cases) == len({case.key for case in cases}) >= 40
    assert {place.gb_per_s for place in PLACES} == {None, 1.0, 0.2, 0.05}
    assert {case.spec.algorithm.name for case in cases} >= set(NAMES) - {"eamsgd"}
    assert {case.transport for case in cases} == {"auto", "process_group", "object_store"}
    assert {case.algorithm for case in cases_of(Place(0.2)) if case.transport == "auto"} == set(ALGORITHMS)


def test_what_is_in_the_ledger_is_not_measured_again(ledger: Ledger) -> None:
    cases = list(cases_of(ONE))
    assert ledger.missing(ONE, 2) == cases + cases
    measured(ledger, cases[0], 1.0)
    assert ledger.missing(ONE, 2) == cases[1:] + cases
    measured(ledger, cases[0], 1.0)
    assert ledger.missing(ONE, 2) == cases[1:] + cases[1:]
    assert ledger.missing(ONE, 1) == cases[1:]


def test_a_torn_line_is_measured_again_and_spoils_nothing(ledger: Ledger) -> None:
    case, other = list(cases_of(ONE))[:2]
    with ledger.path.open("a") as file:
        file.write('{"kind": "rate", "case": "sync | au')
    assert ledger.rates(case) == []
    measured(ledger, case, 3.0)
    measured(ledger, other, 4.0)
    assert (ledger.rates(case), ledger.rates(other)) == ([3.0], [4.0])
    assert ledger.profile is not None


def test_predictions_are_held_against_runs_and_the_fastest_is_named(ledger: Ledger) -> None:
    cases = {case.key: case for case in cases_of(ONE)}
    for case in cases.values():
        measured(ledger, case, 1.0)
    predicted = {row.case: row.predicted for row in Comparison(ledger).rows}
    assert set(predicted) == set(cases.values())
    exact = Ledger(ledger.path.with_name("exact.jsonl"))
    exact.path.write_text("".join(f"{json.dumps(r)}\n" for k in ("profile", "links") for r in ledger.records(k)))
    slowest = min(predicted, key=lambda case: predicted[case])
    for case, rate in predicted.items():
        measured(exact, case, 0.99 * rate, 0.97 * rate, 0.98 * rate)
    found = Comparison(exact)
    assert [row.error for row in found.rows] == pytest.approx([1 / 0.98 - 1] * len(cases))
    assert [row.spread for row in found.rows] == pytest.approx([0.02 / 0.98] * len(cases))
    assert all(answer.regret == 0 for answer in found.answers)
    verdicts = {what: met for what, *_, met in found.verdicts}
    assert verdicts.pop("jobs") is False  # one place is too few
    assert all(verdicts.values())
    measured(exact, slowest, *[100 * rate for rate in [predicted[slowest]] * 9])
    worse = Comparison(exact)
    assert not all(met for *_, met in worse.verdicts)
    assert max(answer.regret for answer in worse.answers) > 0.03
    text = worse.markdown()
    assert "| regret where it is not | 3% |" in text
    assert "which algorithm" in text
    assert f"| {slowest.algorithm} | {slowest.transport} | one node |" in text


@pytest.mark.long  # starts Ray
def test_one_job_is_measured_on_one_node(ledger: Ledger) -> None:
    """Its links are in the ledger, and are not measured."""
    case = Case("downpour", "object_store", ONE)
    assert alone(measure_place, ONE, [case], ledger, Times(part_s=1.0), timeout_s=250) == 0
    (record,) = ledger.records("rate")
    assert (record["case"], record["examples_per_s"] > 0) == (case.key, True)


@pytest.mark.long  # starts Ray on two nodes
@pytest.mark.skipif(not namespaces.is_possible(), reason="links need root and iproute2")
def test_links_and_a_job_are_measured_between_nodes(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # Ray asks for a token here, and reads this as it is imported
    place = Place(0.2)
    case = Case("sync", "auto", place)
    assert alone(measure_place, place, [case], ledger, Times(part_s=1.0, links_s=2.0), timeout_s=280) == 0
    links = ledger.links(place)
    assert links is not None
    assert len(links.nodes) == 2
    assert len(ledger.rates(case)) == 1
    (row,) = Comparison(ledger).rows
    assert row.predicted > 0


def test_each_run_is_predicted_from_the_profile_of_its_own_minute(ledger: Ledger) -> None:
    """Twice as slow a machine in the second run, which is said to be half as fast."""
    case = Case("parallel_sgd", "auto", ONE)
    measured(ledger, case, 1.0)
    (row,) = Comparison(ledger).rows
    usual = profile_of(case.spec)
    for rate, factor in ((0.9, 1.0), (0.45, 2.0), (0.6, 2.0)):
        parts = {name: getattr(usual, name).model_dump() for name in ("data", "forward", "backward", "update")}
        slower = {name: {"median_s": factor * part["median_s"]} for name, part in parts.items()}
        kept = usual.model_dump(mode="json", exclude={"of"}) | slower
        about = {"examples_per_s": rate * row.predicted, "waiting": 0.0, "commit": "c", "load": "0"}
        ledger.add("rate", case=case.key, profile=kept, **about)
    (found,) = Comparison(Ledger(ledger.path)).rows
    assert found.errors[1:] == pytest.approx([1 / 0.9 - 1, 1 / 0.9 - 1, 0.5 / 0.6 - 1], abs=0.02)
    assert found.verdict.startswith("runs differ by ")
    assert "right before it" in Comparison(ledger).markdown()


@pytest.mark.long  # times steps
def test_a_step_is_timed_before_and_after(ledger: Ledger) -> None:
    with yardstick(Case("sync", "auto", ONE).spec, 2) as steps:
        found = steps.profile(steps.measure(0.0), steps.measure(0.0))
    assert (found.steps, found.contention) == (2 * LEAST, 1.0)
    assert found.forward.median_s > 0
    assert {"conv1", "fc1"} <= set(found.layers)


def test_a_part_begins_when_each_worker_has_reported_after_the_rest() -> None:
    """The first report of each has the time in which it stood still; and what the log told before that is passed by."""

    def step(seconds: float, minibatches: int) -> Event:
        examples, rest = (
            workload().minibatch * minibatches,
            dict.fromkeys(("step", "epoch", "loss", "learning_rate"), 0),
        )
        metrics = Metrics(examples=examples, examples_per_s=1.0, workers=2, staleness={}, **rest)
        return Event(seq=0, time=seconds, type="step", data=metrics.model_dump())

    events = iter([step(9.0, 1), *(step(10.0 + at, 2 * at) for at in range(40))])
    times = [at for at, _ in _part(events, [], 10.0, 4.0)]
    assert times[0] == 12.0  # two minibatches a second, and two of each worker are passed by
    assert times[-1] == 12.0 + LEAST_MINIBATCHES / 2


def test_a_run_that_lost_a_worker_is_not_measured() -> None:
    fault = Event(seq=0, time=1.0, type="fault", data={"actor": "predicted/worker/1", "why": "hangs"})
    with pytest.raises(MeasurementError, match="worker/1 hangs"):
        _part(iter([fault]), [], 0.0, 4.0)


def test_without_runs_it_says_what_is_missing(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    measured(ledger, next(cases_of(ONE)), 100.0)
    assert main(["--ledger", str(ledger.path), "--no-runs", "--report"]) == 1
    assert "measurements are missing: run the same command again" in capsys.readouterr().out
    assert "# The cost model against runs" in ledger.path.with_suffix(".md").read_text()


def test_the_report_of_plans_has_the_newest_runs(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    named = Ledger(ledger.path.rename(ledger.path.with_name(f"2026-11-02-predictions-{machine.maker()}.jsonl")))
    monkeypatch.setattr(plan, "RESULTS", named.path.parent)
    assert "has measured none here" in plan.runs()[1]  # it was interrupted before the first run
    measured(named, next(cases_of(ONE)), 100.0)
    text = "\n".join(plan.runs())
    assert f"[its own report](2026-11-02-predictions-{machine.maker()}.md), on p." in text
    assert "| sync | auto | one node | 100 |" in text
