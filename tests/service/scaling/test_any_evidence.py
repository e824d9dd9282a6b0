"""Whatever the evidence, there is a report, and it is the same in any order."""

import json
import math
from typing import NoReturn

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from service.scaling.evidence import Evidence, Point, Question, Trial
from service.scaling.figures import figures
from service.scaling.markdown import markdown
from service.scaling.report import ScalingReport, scaling_report

RATES = st.sampled_from([1e-12, 0.05, 0.1, 0.2, 1e12]) | st.floats(1e-12, 1e12)
BATCHES = st.sampled_from([1, 32, 64, 65, 128, 512, 2**40])
SHARES = st.floats(0, 1) | st.sampled_from([0.0, 0.1, 0.1001, 1.0])
LOSSES = st.floats() | st.sampled_from([0.3, 0.5, math.nan, math.inf])
WORDS = st.sampled_from(["", "LossNotFinite", "LearnedNothing", "DivergesFromBaseline", "a | b\nc", "$\\frac{"])

POINTS = st.builds(
    Point,
    examples=st.integers(0, 2**60),
    epoch=st.floats(0, 1e9) | st.integers(0, 10),
    seconds=st.floats(0, 1e12),
    train_loss=st.none() | LOSSES,
    test_error=st.none() | SHARES,
    test_loss=st.none() | LOSSES,
)
TRIALS = st.builds(
    Trial,
    id=st.text(max_size=4),
    batch=BATCHES,
    rule=st.sampled_from(["none", "sqrt", "linear"]),
    warmup=st.sampled_from(["none", "gradual 5", "$x^{"]),
    lr=RATES,
    multiple=RATES,
    seed=st.integers(-3, 3),
    state=st.sampled_from(["SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "FAILED", "STOPPED", "CANCELLED", "RUNNING", "?"]),
    reason=WORDS,
    error=st.none() | SHARES,
    points=st.lists(POINTS, max_size=5).map(tuple),
    settings=st.dictionaries(st.sampled_from(["seed", "epochs", "model.name", "$x^{"]), st.integers(0, 2), max_size=2),
)
QUESTIONS = st.builds(
    Question,
    base_batch=BATCHES,
    base_lr=st.sampled_from([0.05, 0.1]) | RATES,
    tolerance=st.floats(1e-9, 1),
    target_error=st.none() | SHARES,
)
WILD = st.builds(
    Evidence, name=WORDS, question=QUESTIONS, trials=st.lists(TRIALS, max_size=12, unique_by=lambda t: t.id).map(tuple)
)


@st.composite
def sweeps(draw: st.DrawFn) -> Evidence:
    """Of a few batches at the rules' own rates, so that cells have several seeds, whole and broken curves."""
    question = Question(base_batch=64, base_lr=0.1, tolerance=draw(st.sampled_from([0.005, 0.1, 1.0])))
    found = []
    for number, trial in enumerate(draw(st.lists(TRIALS, max_size=20))):
        batch = draw(st.sampled_from([32, 64, 64, 128, 256, 1024]))
        lr = question.predicted_lr(trial.rule, batch) * draw(st.sampled_from([1, 1, 1, 2]))
        error = draw(st.floats(0.1, 0.12)) if trial.error is not None else None
        told = {"id": str(number), "batch": batch, "lr": lr, "error": error, "settings": {}}
        found.append(trial.model_copy(update=told))
    return Evidence(name="any", question=question, trials=tuple(found))


EVIDENCE = sweeps() | WILD


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is no JSON")


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(EVIDENCE, st.randoms(use_true_random=False))
def test_a_report_of_any_evidence(evidence: Evidence, dice: object) -> None:
    report = scaling_report(evidence)
    shuffled = list(evidence.trials)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert scaling_report(evidence.model_copy(update={"trials": tuple(shuffled)})) == report
    text = evidence.to_json()
    json.loads(text, parse_constant=refuse)
    assert scaling_report(Evidence.from_json(text)) == report
    text = report.model_dump_json()
    json.loads(text, parse_constant=refuse)
    assert ScalingReport.model_validate_json(text) == report
    assert markdown(report).startswith("# Scaling report: ")
    assert sum(report.trials.values()) == len(evidence.trials)
    for variant in report.variants:
        assert variant.answer
        for reach in variant.rules:
            assert evidence.question.base_batch <= reach.safe <= reach.shown <= reach.tried[-1]
            assert reach.breaks_at is None or reach.shown < reach.breaks_at


# A failure is told as it is found: making it smaller draws it a thousand times, each under a tracer.
@settings(derandomize=True, deadline=None, database=None, max_examples=15, phases=[Phase.explicit, Phase.generate])
@given(EVIDENCE)
def test_figures_of_any_evidence(evidence: Evidence) -> None:
    for name, data in figures(scaling_report(evidence), evidence):
        assert data.startswith(b"\x89PNG" if name.endswith(".png") else b"<?xml")
