"""A report compares whatever metric is asked for, in its own unit and direction, as it compares errors."""

from typing import Any

import pytest

from service.scaling.evidence import Evidence
from service.scaling.markdown import markdown
from service.scaling.metric import ERROR, Metric
from service.scaling.report import ScalingReport, scaling_report
from service.sweeps.spec import ReportSpec, SweepSpec, parse_sweep
from service.sweeps.trial_curve import TrialCurve
from tests.service.scaling.synthetic import sweep
from trainers import Event

LOSS = Metric(name="loss")
R2 = Metric(name="r2", higher_is_better=True)


def of(metric: Metric, factor: float, shift: float) -> Evidence:
    """The same trials, of which something else was measured: costs are `factor` times the errors, and `shift` more."""
    found = sweep([64, 256, 1024, 4096], seeds=3, points=20)

    def cost(error: float | None) -> float | None:
        return None if error is None else factor * error + shift

    trials = tuple(
        trial.model_copy(
            update={
                "error": cost(trial.error),
                "points": tuple(p.model_copy(update={"test_error": cost(p.test_error)}) for p in trial.points),
            }
        )
        for trial in found.trials
    )
    update = {"metric": metric, "tolerance": factor * found.question.tolerance}
    return found.model_copy(update={"trials": trials, "question": found.question.model_copy(update=update)})


def verdicts(report: ScalingReport) -> list[Any]:
    return [(cell.batch, str(cell.method), cell.verdict) for cell in report.variants[0].cells]


@pytest.mark.parametrize(("metric", "shift"), [(LOSS, 1.2), (R2, -0.9)])
def test_the_answer_does_not_depend_on_what_is_compared(metric: Metric, shift: float) -> None:
    errors, others = scaling_report(of(ERROR, 1, 0)), scaling_report(of(metric, 2.0, shift))
    assert verdicts(errors) == verdicts(others)
    assert [reach.estimated for reach in errors.variants[0].rules] == [r.estimated for r in others.variants[0].rules]
    text, usual = markdown(others), markdown(errors)
    assert f"## {metric.name.capitalize()} by batch and rule" in text
    assert "error" not in text.replace("standard", "")
    assert f"## Until {metric.name} " in text
    assert "%" in usual
    base = others.variants[0].baseline
    assert base is not None
    assert f"has {metric.name} {abs(base.mean or 0.0):.4g}" in others.variants[0].answer[0]


def evaluation(epoch: float, **data: Any) -> Event:
    data = {"epoch": epoch, "examples": int(100 * epoch), "seconds": 0.1, **data}
    return Event(seq=1, time=epoch, type="evaluation", data=data)


def test_a_curve_of_a_language_model() -> None:
    """Its headline is the loss; another metric is compared where it is asked for."""
    asked = ReportSpec(metric="perplexity")
    headline, perplexity, r2 = TrialCurve(), TrialCurve(asked), TrialCurve(ReportSpec(metric="r2"))
    for epoch, loss in ((1, 2.0), (2, 1.5), (3, 1.0)):
        event = evaluation(
            epoch, test_loss=loss, test_perplexity=10 * loss, test_r2=loss / 4, headline="loss", higher_is_better=False
        )
        for curve in (headline, perplexity, r2):
            curve.add(event)
    assert (headline.metric, headline.error) == (LOSS, 1.5)
    assert (perplexity.metric, perplexity.error) == (Metric(name="perplexity"), 15.0)
    assert (r2.metric, r2.error) == (R2, -0.375)
    assert R2.value(r2.error or 0.0) == 0.375
    none = TrialCurve(ReportSpec(metric="recall"))
    none.add(evaluation(1, test_loss=1.0))
    assert (none.metric, none.error, none.measured) == (None, None, ("loss",))


def test_what_is_measured_in_percent_and_what_is_not() -> None:
    assert (ERROR.told(0.0342), ERROR.gap(0.005)) == ("3.42 %", "0.50 points")
    assert (LOSS.told(1.23456), LOSS.gap(0.005)) == ("1.235", "0.005")
    assert (R2.told(-0.875), R2.worst) == ("0.875", 1e30)
    assert Metric.of({"test_loss": 1.0, "test_accuracy": 0.9}) == ERROR, "a log from before there were tasks"
    own = {"test_found": 0.5, "test_loss": 1.0, "headline": "found", "higher_is_better": True}
    assert Metric.of(own) == Metric(name="found", higher_is_better=True)
    judged = Metric.of({"set": "validation", "validation_loss": 1.0, "validation_accuracy": 0.9})
    assert judged == Metric(measured_on="validation")


@pytest.mark.parametrize(
    ("task", "report", "why"),
    [
        ("language_model", {"target_error": 0.1}, "target_error: no test error is compared"),
        ("classification", {"target": 0.1}, "target: the test error is compared"),
        ("classification", {"tolerance": 2.0}, "tolerance: of errors it is a share"),
    ],
)
def test_what_does_not_go_together(task: str, report: dict[str, Any], why: str) -> None:
    job = {"task": task, "data": {"name": "text"} if task == "language_model" else "digits"}
    with pytest.raises(Exception, match=why):
        parse_sweep({"job": job, "axes": {"seed": [0, 1]}, "report": report})
    assert SweepSpec.model_validate({"job": job, "axes": {"seed": [0, 1]}})
