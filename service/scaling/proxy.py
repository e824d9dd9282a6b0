"""Whether the training curves predicted the result (paper 4, section 5.3), and what stopping by them saved."""

from collections.abc import Sequence

from service.scaling.cells import BASE, Groups, final_error, outcome
from service.scaling.divergence import Divergence, separation
from service.scaling.evidence import DIVERGED, Question, ReportModel, Trial
from service.scaling.loss_curves import last_epoch, loss_curve
from service.scaling.statistics import Seeds, mean


class Proxy(ReportModel):
    """The trials that trained to their end, replayed: which of them `diverges_from_baseline` would have stopped."""

    limits: Divergence
    worse: int
    """Trials whose own error is beyond the baseline's mean by more than the tolerance, or whose loss was not finite."""
    worse_stopped: int
    """Of these, stopped."""
    as_good: int
    """The other trials."""
    as_good_stopped: int
    """Of these, stopped: false alarms."""
    stopped_at: float | None
    """Share of the epochs after which they were stopped, mean."""
    would_save: float
    """Share of all these trials' examples that would not have been trained."""


class Saved(ReportModel):
    """Compute that stopped trials did not use."""

    trials: int
    """Stopped because their curve left the baseline's."""
    examples: int
    """Not trained."""
    seconds: float
    """That these would have taken, at each trial's own pace."""
    share: float
    """Of the examples that the sweep's ended trials would have trained otherwise."""


def replayed(groups: Groups, baseline: Seeds, question: Question, epochs: float, limits: Divergence) -> Proxy | None:
    """None without a baseline or without another trial that has a curve."""
    base = groups.get((BASE, question.base_batch))
    if base is None or not baseline.errors or epochs <= 0:
        return None
    curves = [loss_curve(trial.points, epochs) for trial in base.trials if outcome(trial) == "finished"]
    compared = [t for key, g in groups.items() if key[1] != question.base_batch for t in g.trials if _counts(t)]
    if not compared or not curves:
        return None
    bound = baseline.mean + question.tolerance
    counts, at, saved = {True: [0, 0], False: [0, 0]}, [], 0.0
    for trial in compared:
        found = separation(loss_curve(trial.points, epochs), curves, epochs, limits)
        worse = outcome(trial) == "diverged" or (final_error(trial) or 0.0) > bound
        counts[worse][0] += 1
        if found.separated and found.epoch is not None:
            counts[worse][1] += 1
            at.append(min(found.epoch / epochs, 1.0))
            saved += max(0.0, last_epoch(trial.points) - found.epoch)
    trained = sum(last_epoch(trial.points) for trial in compared)
    return Proxy(
        limits=limits,
        worse=counts[True][0],
        worse_stopped=counts[True][1],
        as_good=counts[False][0],
        as_good_stopped=counts[False][1],
        stopped_at=mean(at) if at else None,
        would_save=saved / trained if trained > 0 else 0.0,
    )


def _counts(trial: Trial) -> bool:
    return bool(trial.points) and outcome(trial) in ("finished", "diverged")


def saved_by_stopping(parts: Sequence[Groups]) -> Saved:
    """Of all variants: what each stopped trial lacks to the longest finished trial of its variant."""
    stopped, examples, seconds, trained = 0, 0, 0.0, 0
    for groups in parts:
        trials = [trial for group in groups.values() for trial in group.trials]
        whole = max((_trained(trial)[0] for trial in trials if outcome(trial) == "finished"), default=0)
        for trial in trials:
            done, took_s = _trained(trial)
            trained += done
            if trial.state == "STOPPED" and trial.reason.startswith(DIVERGED):
                stopped += 1
                examples += max(0, whole - done)
                seconds += max(0, whole - done) * took_s / done if done else 0.0
    share = examples / (trained + examples) if examples else 0.0
    return Saved(trials=stopped, examples=examples, seconds=seconds, share=share)


def _trained(trial: Trial) -> tuple[int, float]:
    """Examples and seconds so far."""
    if not trial.points:
        return 0, 0.0
    return max(p.examples for p in trial.points), max(p.seconds for p in trial.points)
