"""Trials of a sweep that varies no batch, of a known truth."""

import random
from collections.abc import Iterable

from service.scaling.evidence import Evidence, Question, Trial


def trial(number: int, error: float | None, seed: int = 0, **settings: object) -> Trial:
    """One that finished, of no error: failed."""
    fields = {"id": f"t{number:03}", "batch": 8, "rule": "none", "warmup": "none", "lr": 0.1, "seed": seed}
    state = {"state": "SUCCEEDED"} if error is not None else {"state": "FAILED", "reason": "TrialDied"}
    return Trial.model_validate({**fields, **state, "error": error, "settings": {**settings, "seed": seed}})


def evidence(trials: Iterable[Trial]) -> Evidence:
    return Evidence(name="tuned", question=Question(base_batch=8, base_lr=0.1), trials=tuple(trials))


def grid(seeds: int = 3) -> Evidence:
    """The rate matters most, the rule of update a little, the limit not at all; the best rate is 0.1."""
    dice, found = random.Random(0), list[Trial]()
    for rate, worse in ((0.01, 0.2), (0.03, 0.1), (0.1, 0.0), (0.3, 0.15)):
        for name in ("momentum", "sgd"):
            for limit in (100, 200):
                for seed in range(seeds):
                    error = 0.1 + worse + (0.03 if name == "sgd" else 0.0) + dice.gauss(0, 0.002)
                    settings = {"optimizer.lr": rate, "optimizer.name": name, "data.limit": limit}
                    found.append(trial(len(found), error, seed, **settings))
    return evidence(found)
