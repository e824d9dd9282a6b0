"""Sweeps of a known truth: each method holds up to a batch, and its error and its curves grow apart above it."""

import math
import random
from collections.abc import Iterable, Mapping

from service.scaling.evidence import Evidence, Point, Question, Rule, Trial

BASE, LR, EPOCHS, EXAMPLES = 64, 0.05, 20, 10_000
ERROR, SPREAD = 0.10, 0.001
"""Of the baseline: its mean error and its standard deviation over seeds."""
HOLDS: dict[tuple[Rule, str], int] = {
    ("none", "none"): 128,
    ("sqrt", "none"): 256,
    ("linear", "none"): 512,
    ("linear", "gradual"): 1024,
}


def excess(batch: int, holds: int) -> float:
    """The true error above the baseline's: nothing up to `holds`, then 3 points for each doubling."""
    return 0.03 * max(0.0, math.log2(batch / holds))


def curve(error: float, worse: float, dice: random.Random, points: int, batch: int) -> tuple[Point, ...]:
    """From a loss of 2.3 down to 0.3 and what is worse, with an evaluation at the end of each epoch."""
    found = []
    for i in range(1, points + 1):
        epoch = i * EPOCHS / points
        left = math.exp(-epoch / 3)
        loss = 0.3 + 2.0 * left + 4 * worse * (1 - left) + dice.gauss(0, 0.01)
        ends = i * EPOCHS % points == 0
        test_error = error + 0.8 * math.exp(-epoch / 2) if ends else None
        seconds = epoch * (2 + 64 / batch)
        found.append(
            Point(
                examples=round(epoch * EXAMPLES),
                epoch=epoch,
                seconds=seconds,
                train_loss=loss,
                test_error=None if test_error is None else min(1.0, test_error),
            )
        )
    return tuple(found)


def trial(
    batch: int, rule: Rule = "none", warmup: str = "none", seed: int = 0, multiple: float = 1.0, **more: object
) -> Trial:
    """A finished trial without points, of the base recipe."""
    question = Question(base_batch=BASE, base_lr=LR)
    fields: dict[str, object] = {
        "id": f"{batch}-{rule}-{warmup}-{multiple:g}-{seed}",
        "batch": batch,
        "rule": rule,
        "warmup": warmup,
        "lr": question.predicted_lr(rule, batch) * multiple,
        "multiple": multiple,
        "seed": seed,
        "state": "SUCCEEDED",
    }
    return Trial.model_validate(fields | more)


def evidence(trials: Iterable[Trial], **question: object) -> Evidence:
    """Of the synthetic question."""
    asked = Question.model_validate({"base_batch": BASE, "base_lr": LR} | question)
    return Evidence(name="synthetic", question=asked, trials=tuple(trials))


def sweep(
    batches: Iterable[int] = (64, 128, 256, 512, 1024, 2048, 4096),
    seeds: int = 5,
    points: int = 0,
    truth: int = 0,
    holds: Mapping[tuple[Rule, str], int] = HOLDS,
    multiples: Iterable[float] = (1.0,),
    spread: float = SPREAD,
) -> Evidence:
    """Every method at every batch; `truth` draws another sample of the same truth."""
    dice, found = random.Random(truth), []
    for multiple in multiples:
        for (rule, warmup), limit in holds.items():
            for batch in batches:
                if batch == BASE and (rule, warmup) != ("none", "none"):
                    continue
                for seed in range(seeds):
                    worse = excess(batch, limit) + 0.01 * math.log2(multiple) ** 2
                    error = min(1.0, max(0.0, ERROR + worse + dice.gauss(0, spread)))
                    points_told = curve(error, worse, dice, points, batch) if points else ()
                    found.append(trial(batch, rule, warmup, seed, multiple, error=error, points=points_told))
    return evidence(found)
