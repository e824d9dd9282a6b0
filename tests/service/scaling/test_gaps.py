"""What a report says is missing: seeds, batches and rates that were not tried, and a baseline that breaks."""

import pytest

from service.scaling.report import scaling_report
from tests.service.scaling.reports import cell, gaps, one, reach, with_trials
from tests.service.scaling.synthetic import BASE, EPOCHS, ERROR, LR, evidence, sweep, trial


def test_no_trials_at_all() -> None:
    report = scaling_report(evidence([]))
    assert report.variants == []


def test_no_baseline() -> None:
    variant = one(scaling_report(evidence([trial(128, "linear", seed=s, error=0.1) for s in range(3)])))
    assert variant.baseline is None
    (sentence,) = variant.answer
    assert sentence.startswith("There is no baseline: no trial at batch 64 with the rate 0.05 has a result. Nothing")
    (gap,) = gaps(variant, "baseline")
    (proposal,) = gap.proposals
    assert (proposal.batch, proposal.lr, proposal.multiple, proposal.seeds) == (BASE, LR, 1.0, [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    "end",
    [
        {"state": "FAILED", "reason": "LossNotFinite"},
        {"state": "FAILED", "reason": "Diverged"},
        {"state": "SUCCEEDED", "reason": "LearnedNothing", "error": 0.9},
    ],
)
def test_a_baseline_that_breaks(end: dict[str, object]) -> None:
    broken = trial(BASE, seed=2, **end)
    variant = one(scaling_report(evidence([*(trial(BASE, seed=s, error=0.1) for s in range(2)), broken])))
    assert "1 of its seeds broke" in variant.answer[0]
    (gap,) = gaps(variant, "baseline")
    assert [(p.batch, p.multiple, p.lr, p.seeds) for p in gap.proposals] == [(BASE, 0.5, LR / 2, [0, 1, 2, 3, 4])]


def test_one_seed_shows_nothing_and_more_are_asked_for() -> None:
    variant = one(scaling_report(sweep(seeds=1)))
    assert all(found.shown == BASE and found.breaks_at is None for found in variant.rules)
    assert reach(variant, "linear").estimated == 512
    assert gaps(variant, "baseline")[0].proposals[0].seeds == [1, 2, 3, 4]
    assert variant.answer[-1] == (
        "Stay at batch 64 with the learning rate 0.05, until more seeds confirm the most likely limit."
    )


def test_too_few_seeds_are_asked_for_as_many_as_would_settle_it() -> None:
    shape = (-0.002, 0.0, 0.002)
    trials = [trial(BASE, seed=s, error=0.1 + z) for s, z in enumerate(shape)]
    trials += [trial(128, "linear", seed=s, error=0.103 + z) for s, z in enumerate(shape)]
    variant = one(scaling_report(evidence(trials)))
    assert cell(variant, 128, "linear").verdict == "undecided"
    (gap,) = gaps(variant, "seeds")
    assert [(p.batch, p.seeds[0]) for p in gap.proposals] == [(128, 3), (BASE, 3)]
    count = 3 + len(gap.proposals[0].seeds)
    wide = [z for z, _ in zip([-0.002, 0.0, 0.002] * 10, range(count), strict=False)]
    more = [trial(BASE, seed=s, error=0.1 + z) for s, z in enumerate(wide)]
    more += [trial(128, "linear", seed=s, error=0.103 + z) for s, z in enumerate(wide)]
    assert cell(one(scaling_report(evidence(more))), 128, "linear").verdict == "within"


def test_an_error_at_the_tolerance_is_not_settled_by_seeds() -> None:
    shape = (-0.002, 0.0, 0.002)
    trials = [trial(BASE, seed=s, error=0.1 + z) for s, z in enumerate(shape)]
    trials += [trial(128, "linear", seed=s, error=0.1049 + z) for s, z in enumerate(shape)]
    (gap,) = gaps(one(scaling_report(evidence(trials))), "close")
    assert "state another tolerance" in gap.message


def test_no_batch_at_which_it_breaks() -> None:
    variant = one(scaling_report(sweep(batches=(64, 128, 256), seeds=5)))
    linear = reach(variant, "linear", "gradual")
    assert (linear.shown, linear.breaks_at, linear.safe) == (256, None, 128)
    larger = {gap.message: gap.proposals for gap in gaps(variant, "larger")}
    proposals = larger["rule linear with gradual warm-up has not broken up to batch 256, the largest tried"]
    assert [(p.batch, p.lr, p.seeds) for p in proposals] == [
        (512, pytest.approx(0.4), [0, 1, 2, 3, 4]),
        (1024, pytest.approx(0.8), [0, 1, 2, 3, 4]),
    ]


def test_batches_left_out_before_the_break_are_proposed() -> None:
    variant = one(scaling_report(sweep(batches=(64, 128, 4096), seeds=5)))
    between = [g for g in gaps(variant, "between") if g.message.startswith("rule linear with gradual")]
    assert [p.batch for p in between[0].proposals] == [256, 512, 1024, 2048]


def test_a_batch_that_one_rule_lacks_is_proposed_and_ends_nothing_silently() -> None:
    found = sweep(seeds=5)
    trials = [t for t in found.trials if not (t.rule == "linear" and t.warmup == "none" and t.batch == 256)]
    (gap,) = gaps(one(scaling_report(with_trials(found, trials))), "gap")
    assert [(p.batch, p.rule, p.warmup) for p in gap.proposals] == [(256, "linear", "none")]


def test_a_batch_that_fails_below_one_that_holds_is_pointed_out() -> None:
    found = sweep(seeds=5)
    bad = [
        t.model_copy(update={"error": 0.3 + 0.01 * t.seed})
        if (t.rule, t.warmup, t.batch) == ("linear", "gradual", 256)
        else t
        for t in found.trials
    ]
    variant = one(scaling_report(with_trials(found, bad)))
    linear = reach(variant, "linear", "gradual")
    assert (linear.shown, linear.breaks_at) == (128, 2048)
    assert any(
        "beyond the tolerance at batch 256 and within it at 512" in gap.message for gap in gaps(variant, "seeds")
    )


def test_only_the_base_was_tried() -> None:
    variant = one(scaling_report(evidence([trial(BASE, seed=s, error=0.1 + 0.001 * s) for s in range(3)])))
    assert variant.answer[-1] == "No larger batch was tried."
    (gap,) = gaps(variant, "larger")
    assert [p.batch for p in gap.proposals] == [128, 256, 512]


def test_a_best_rate_at_the_edge_asks_for_one_beyond() -> None:
    trials = [
        trial(BASE, multiple=m, seed=s, error=0.2 - 0.02 * m + 0.0001 * s) for m in (0.5, 1.0, 2.0) for s in range(3)
    ]
    (gap,) = gaps(one(scaling_report(evidence(trials))), "rate")
    (proposal,) = gap.proposals
    assert (proposal.batch, proposal.multiple, proposal.lr) == (BASE, 4.0, pytest.approx(4 * LR))


def test_proposals_tell_how_long_they_take() -> None:
    variant = one(scaling_report(sweep(batches=(64, 128), points=20, seeds=5)))
    proposal = gaps(variant, "larger")[0].proposals[0]
    assert proposal.about_s == pytest.approx(len(proposal.seeds) * 2.6 * EPOCHS, rel=0.05)


def test_one_undecided_batch_does_not_hide_what_larger_ones_show() -> None:
    found = sweep(seeds=3)
    shape = (-0.01, 0.0, 0.01)
    noisy = [
        t.model_copy(update={"error": ERROR + shape[t.seed]})
        if (t.rule, t.warmup, t.batch) == ("linear", "gradual", 128)
        else t
        for t in found.trials
    ]
    variant = one(scaling_report(with_trials(found, noisy)))
    linear = reach(variant, "linear", "gradual")
    assert cell(variant, 128, "linear", "gradual").verdict == "undecided"
    assert (linear.shown, linear.estimated, linear.breaks_at) == (1024, 1024, 2048)
    assert variant.rules[0] == linear


def test_the_best_guess_is_not_misled_by_one_mean_beyond_the_tolerance() -> None:
    trials = [trial(BASE, seed=s, error=0.1 + 0.01 * s) for s in range(2)]
    for batch, error in ((128, 0.107), (256, 0.1), (512, 0.102), (1024, 0.2)):
        trials += [trial(batch, "linear", seed=s, error=error + 0.01 * s) for s in range(2)]
    linear = reach(one(scaling_report(evidence(trials))), "linear")
    assert (linear.shown, linear.estimated) == (BASE, 512)


def test_the_best_guess_is_not_misled_by_one_mean_within_it_either() -> None:
    trials = [trial(BASE, seed=s, error=0.1 + 0.01 * s) for s in range(2)]
    for batch, error in ((128, 0.1), (256, 0.13), (512, 0.104), (1024, 0.2)):
        trials += [trial(batch, "linear", seed=s, error=error + 0.01 * s) for s in range(2)]
    assert reach(one(scaling_report(evidence(trials))), "linear").estimated == 128


def test_the_best_guess_ranks_the_rules_and_what_is_shown_is_to_be_used() -> None:
    trials = [trial(BASE, seed=s, error=0.1 + 0.001 * s) for s in range(3)]
    for batch in (128, 256, 512):
        sqrt = 0.1 if batch < 512 else 0.2
        trials += [trial(batch, "sqrt", seed=s, error=sqrt + 0.001 * s) for s in range(3)]
        trials += [trial(batch, "linear", seed=s, error=0.09 + 0.01 * s) for s in range(3)]
    variant = one(scaling_report(evidence(trials)))
    assert [(r.rule, r.estimated, r.shown) for r in variant.rules] == [("linear", 512, BASE), ("sqrt", 256, 256)]
    assert variant.answer[-1].startswith("Use batch 128 with the learning rate 0.07071 (rule sqrt)")
