"""Claims: their files, and what seeds make of them."""

import math
from pathlib import Path
from typing import Any

import pytest

from service import (
    Claim,
    ClaimReport,
    SpecInvalid,
    all_claims,
    claim_of,
    claim_page,
    claim_picture,
    claim_report,
    configurations,
)
from service.claims.claim import variant_name
from service.scaling.evidence import Evidence, Point, Question, Trial
from service.scaling.statistics import interval_of

REPOSITORY = Path(__file__).parents[3]
SWEEP = {
    "job": {"data": "digits", "workers": 1},
    "variants": {"small": {"batch.per_worker": 8}, "large": {"batch.per_worker": 64}},
    "axes": {"seed": [0, 1, 2]},
}
CLAIM = {
    "number": 1, "name": "a-claim", "claim": "Large is worse.", "source": "a paper", "differs": "Everything.",
    "minutes": 1, "sweep": SWEEP, "expect": [{"worse": "large", "than": "small", "by": 0.01}],
}  # fmt: skip


def claim(**fields: Any) -> Claim:
    return Claim.model_validate(CLAIM | fields)


def seen(**errors: list[float | str]) -> Evidence:
    """Variant -> one error a seed, or `diverged`, or `failed`."""
    trials = []
    for variant, values in errors.items():
        for seed, value in enumerate(values):
            failed = isinstance(value, str)
            reason = "LossNotFinite" if value == "diverged" else ""
            points = () if failed else (Point(examples=10, epoch=1, seconds=1, test_error=float(value)),)
            trials.append(
                Trial(id=f"{variant}-{seed}", batch=8, rule="none", warmup="none", lr=0.1, seed=seed,
                      state="FAILED" if failed else "SUCCEEDED", reason=reason,
                      error=None if failed else float(value), points=points, settings={"variant": variant})
            )  # fmt: skip
    return Evidence(name="a-claim", question=Question(base_batch=8, base_lr=0.1), trials=tuple(trials))


@pytest.mark.parametrize("name", list(all_claims()))
def test_every_claim_can_be_asked_whole_and_quickly(name: str) -> None:
    one = claim_of(name)
    for quick in (False, True):
        found = configurations(one.asked(quick))
        before = one.asked_before(quick)
        assert before is None or {trial.job.seed for trial in configurations(before)} >= {t.job.seed for t in found}
        asked = {variant_name(trial.settings) for trial in found}
        computed = set(one.shards.variants if one.shards else ())
        assert {name for expected in one.expect for name in expected.variants} <= asked | computed
        assert len({trial.job.seed for trial in found}) >= (2 if quick else 3)
    own = ("digits", "sleeping:numbers", "momentum:examples")
    assert all(trial.job.data.name.endswith(own) for trial in found)  # a quick run needs no data of its own
    assert claim_of(str(one.number)) is one


def test_a_claim_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(SpecInvalid, match=r"there is no claim 'warm', only .*warm-up"):
        claim_of("warm")
    with pytest.raises(ValueError, match="there is no variant 'huge', only small, large"):
        claim(expect=[{"worse": "huge", "than": "small"}])


def test_a_sweep_starts_from_the_models_of_the_one_before_with_its_own_seeds(tmp_path: Path) -> None:
    sweep = SWEEP | {"variants": {"small": {"model.weights": "before/narrow-{seed}.safetensors"}, "large": {}}}
    before = SWEEP | {"variants": {"narrow": {}}}
    one = claim(sweep=sweep, before=before, quick={"before.job.epochs": 2, "job.batch": 4})
    weights = [trial.job.model.weights for trial in configurations(one.asked(folder=tmp_path))]
    assert weights == [*(str(tmp_path / f"before/narrow-{seed}.safetensors") for seed in (0, 1, 2)), *[None] * 3]
    found = one.asked_before(True, ["job.data.root=here", "before.job.batch=16"])
    assert found is not None
    assert (found.job.epochs, found.job.batch.per_worker, found.job.data.root) == (2, 16, "here")
    assert one.asked(True).job.batch.per_worker == 4
    with pytest.raises(SpecInvalid, match="a-claim runs nothing before its sweep"):
        claim().asked_before(overrides=["before.job.epochs=1"])


NO_WORSE = [{"no_worse": "large", "than": "small", "within": 0.01}]


@pytest.mark.parametrize(
    ("expect", "large", "answer"),
    [
        (CLAIM["expect"], [0.13, 0.14, 0.15], "holds here"),
        (CLAIM["expect"], [0.10, 0.11, 0.12], "does not hold here"),
        (CLAIM["expect"], [0.10, 0.11, 0.19], "not shown"),
        (CLAIM["expect"], [0.13], "not shown"),
        (CLAIM["expect"], ["diverged", 0.1, 0.1], "holds here"),
        (NO_WORSE, [0.10, 0.11, 0.12], "holds here"),
        (NO_WORSE, [0.13, 0.14, 0.15], "does not hold here"),
        (NO_WORSE, ["diverged", 0.1, 0.1], "does not hold here"),
        (NO_WORSE, ["failed", "failed", 0.1], "not shown"),
        ([*CLAIM["expect"], *NO_WORSE], [0.13, 0.14, 0.15], "holds in part"),  # type: ignore[misc]
    ],
)
def test_the_verdict_of_the_seeds(expect: Any, large: list[float | str], answer: str) -> None:
    # The seeds differ by far more than the variants do: only the differences seed by seed tell.
    report = claim_report(claim(expect=expect), seen(small=[0.10, 0.11, 0.12], large=large))
    assert report.verdict == answer
    if answer == "holds here" and len(report.findings) == 1 and not report.variants[1].diverged:
        assert report.findings[0].low is not None


def test_an_interval_is_students_of_the_paired_differences() -> None:
    assert interval_of([1.0]) is None
    assert interval_of([2.0, 2.0]) == (2.0, 2.0)
    low, high = interval_of([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (low + high) / 2 == pytest.approx(2.0)
    assert (high - low) / 2 == pytest.approx(2.919986 * 1.0 / math.sqrt(3), rel=1e-6)  # t at 0.95 of 2 degrees


COUNTED = "bytes sent an example"


@pytest.mark.parametrize(
    ("expect", "answer"),
    [
        ({"more": "large", "than": "small", "times": 3}, "holds here"),
        ({"more": "large", "than": "small", "times": 5}, "does not hold here"),
        ({"more": "small", "than": "large", "times": 4}, "does not hold here"),
        ({"no_more": "large", "than": "small", "times": 4.5}, "holds here"),
        ({"no_more": "large", "than": "small", "times": 3.5}, "does not hold here"),
    ],
)
def test_the_verdict_on_what_was_counted(expect: Any, answer: str) -> None:
    evidence = seen(small=[0.1, 0.1], large=[0.1, "failed"])
    sent = {"small-0": 100.0, "small-1": 200.0, "large-0": 400.0, "large-1": 90.0}
    known = [trial.model_copy(update={"quantities": {COUNTED: sent[trial.id]}}) for trial in evidence.trials]
    one = claim(expect=[{**expect, "of": COUNTED}])
    assert one.quantities == (COUNTED,)
    assert not one.judges_metric
    few = claim_report(one, evidence.model_copy(update={"trials": tuple(known)}))
    assert few.verdict == "not shown"  # the seed that failed counts for nothing, and one is left
    known[-1] = known[-1].model_copy(update={"quantities": {COUNTED: 800.0}, "state": "SUCCEEDED", "reason": ""})
    found = claim_report(one, Evidence(**evidence.model_dump(exclude={"trials"}), trials=tuple(known)))
    assert found.verdict == answer
    assert "| 4 to 4 times |" in claim_page(found) or "| 0.25 to 0.25 times |" in claim_page(found)
    assert "| large | 600 ± 283 | 2 |" in claim_page(found)
    assert claim_picture(found, evidence)["svg"].startswith(b"<?xml")


def test_what_is_counted_over_workers_is_drawn_over_their_number() -> None:
    sweep = SWEEP | {"variants": {"1 worker": {}, "4 workers": {"workers.count": 4}}}
    rate = "examples a second"
    one = claim(sweep=sweep, expect=[{"more": "4 workers", "than": "1 worker", "of": rate, "times": 3}])
    evidence = seen(**{"1 worker": [0.5, 0.5], "4 workers": [0.5, "diverged"]})
    counted = {"1 worker": 2.0, "4 workers": 7.0}
    trials = [t.model_copy(update={"quantities": {rate: counted[str(t.settings["variant"])]}}) for t in evidence.trials]
    trials[-1] = trials[-1].model_copy(update={"state": "SUCCEEDED"})  # what it learned does not matter
    report = claim_report(one, evidence.model_copy(update={"trials": tuple(trials)}))
    assert report.verdict == "holds here"
    assert "| 4 workers | 7.00 | 2 |" in claim_page(report)
    assert b"in proportion to the workers" in claim_picture(report, evidence)["svg"]
    assert claim_picture(claim_report(one, seen()), seen())["png"]


def test_how_evenly_a_model_lies_on_its_servers_is_computed() -> None:
    of = "share of the fullest shard"
    expect = [
        {"more": "alexnet in turn, even numbers", "than": "alexnet in turn, odd numbers", "of": of, "times": 0.95},
        {"no_more": "alexnet cut evenly, even numbers", "than": "alexnet cut evenly, odd numbers", "of": of,
         "times": 1},
    ]  # fmt: skip
    report = claim_report(claim(shards={"models": ["alexnet"], "most": 8}, expect=expect), seen(small=[], large=[]))
    assert report.verdict == "holds here"  # weights and biases by turns: the second server has biases alone
    assert report.shares["alexnet in turn"][2] == pytest.approx(1, abs=1e-3)
    assert report.shares["alexnet in turn"][4] > report.shares["alexnet in turn"][3]
    assert report.shares["alexnet cut evenly"][4] == pytest.approx(0.25, abs=1e-3)
    assert "| 2 | 100.0 % | 50.0 % |" in claim_page(report)
    assert claim_picture(report, seen())["png"]
    with pytest.raises(ValueError, match="there is no variant 'vgg11 in turn, odd numbers'"):
        claim(expect=[{"more": "vgg11 in turn, odd numbers", "than": "small", "of": of}])


def test_a_page_and_a_picture() -> None:
    evidence = seen(small=[0.10, 0.11, 0.12], large=["diverged", 0.14, "failed"])
    report = claim_report(claim(), evidence)
    text = claim_page(report, made=["commit abc"], picture="claim.svg")
    assert "**The claim holds here**" in text
    assert "| large | - | 1, 1 diverged, 1 without a result |" in text
    assert "| small | 11.00 ± 1.00 % | 3 |" in text
    assert "![What each variant came to, and its test curve](claim.svg)" in text
    assert claim_picture(report, evidence)["png"].startswith(b"\x89PNG")
    assert claim_picture(claim_report(claim(), seen()), seen())["svg"].startswith(
        b"<?xml"
    )  # before the first trial ends


def test_a_sweep_of_rules_over_batches_names_its_variants_and_tells_where_each_rule_breaks() -> None:
    axes = {"batch": [8, 16, 64], "rule": ["none", "linear"], "seed": [0, 1, 2]}
    sweep = {"job": {"data": "digits", "workers": 1, "batch": {"per_worker": 8, "base": 8}}, "axes": axes}
    one = claim(sweep=sweep, expect=[{"worse": "64, linear", "than": "16, linear", "by": 0.1}])
    with pytest.raises(ValueError, match="there is no variant '32, linear', only 8, none, 8, linear, 16, none"):
        claim(sweep=sweep, expect=[{"worse": "32, linear", "than": "16, linear"}])
    errors = {(8, "none"): 0.1, (16, "none"): 0.15, (16, "linear"): 0.101, (64, "none"): 0.3, (64, "linear"): 0.6}
    trials = tuple(
        Trial(id=f"{batch}-{rule}-{seed}", batch=batch, rule=rule, warmup="none", seed=seed, state="SUCCEEDED",
              lr=0.1 * (batch / 8 if rule == "linear" else 1), error=error + 0.001 * seed,
              points=(Point(examples=10, epoch=1, seconds=1, test_error=error),),
              settings={"batch": batch, "rule": rule, "seed": seed})
        for (batch, rule), error in errors.items() for seed in range(3)
    )  # fmt: skip
    found = Evidence(name="a-claim", question=Question(base_batch=8, base_lr=0.1), trials=trials)
    report = claim_report(one, found)
    assert report.verdict == "holds here"
    assert [variant.name for variant in report.variants][:2] == ["8, none", "16, none"]
    text = claim_page(report)
    assert "## Where each rule breaks" in text
    assert "- Rule linear is shown to be as good up to batch 16" in text
    assert "by batch 64" in text
    svg = claim_picture(report, found)["svg"].decode()
    assert "batch (examples an update)" in svg
    assert "16, none" not in svg  # the curves are the best rule's


@pytest.mark.parametrize(
    ("large", "answer"),
    [([0.11, 0.09, 0.10], "holds"), ([0.31, 0.30, 0.29], "does not hold"), ([0.02, 0.01, 0.0], "does not hold")],
)
def test_one_is_near_another_where_it_is_neither_above_nor_below(large: list[float | str], answer: str) -> None:
    asked = claim(expect=[{"near": "large", "to": "small", "within": 0.05}])
    report = claim_report(asked, seen(small=[0.10, 0.10, 0.11], large=large))
    assert [one.answer for one in report.findings] == [answer]
    assert report.findings[0].expected == "large is within 5.00 points of small"
    one = claim_report(asked, seen(small=[0.1, 0.1], large=[0.1, "diverged"]))
    assert one.findings[0].answer == "does not hold"


def test_what_was_evaluated_once_has_no_curves() -> None:
    once = seen(small=[0.10, 0.11, 0.12], large=[0.13, 0.14, 0.15])
    more = Point(examples=20, epoch=2, seconds=2, test_error=0.1)
    twice = once.model_copy(
        update={"trials": tuple(t.model_copy(update={"points": (*t.points, more)}) for t in once.trials)}
    )
    for evidence, has_curves in ((once, False), (twice, True)):
        svg = claim_picture(claim_report(claim(), evidence), evidence)["svg"].decode()
        assert (">epochs<" in svg or "epochs -->" in svg) is has_curves


def test_a_page_tells_what_the_networks_were_before() -> None:
    asked = claim(before=SWEEP | {"variants": {"narrow": {}, "wide": {"batch.per_worker": 64}}})
    found = seen(small=[0.10, 0.11, 0.12], large=[0.13, 0.14, 0.15])
    report = claim_report(asked, found, before=seen(narrow=[0.2, 0.3, 0.4], wide=["failed", 0.4, 0.4]))
    text = claim_page(report, picture="claim.svg")
    head, _, below = text.partition("## The networks before")
    assert "| small | 11.00 ± 1.00 % | 3 |" in head
    assert "| narrow | 30.00 ± 10.00 % | 3 |" in below
    assert "| wide | 40.00 ± 0.00 % | 2, 1 without a result |" in below
    assert claim_picture(report, found)["svg"].startswith(b"<?xml")
    assert claim_report(asked, found).before is None


def test_the_guide_has_a_page_for_each_report_and_its_verdict() -> None:
    folder = REPOSITORY / "docs" / "claims"
    table = (folder / "index.md").read_text()
    reports = [ClaimReport.model_validate_json(path.read_text()) for path in folder.glob("*.json")]
    assert {path.stem for path in folder.glob("*.md")} - {"index"} == {report.name for report in reports}
    for report in reports:
        assert f"]({report.name}.md) | {report.verdict} |" in table
        assert report.verdict in (folder / f"{report.name}.md").read_text()
        assert report.claim == all_claims()[report.name].claim
        assert not report.quick
