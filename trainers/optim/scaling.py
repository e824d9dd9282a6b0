"""How learning rate and weight decay follow the batch. Numbers only: imports no torch.

k is the factor by which the batch of an update is larger than the base batch.
"""

import math

from trainers.spec import TrainSpec


def batch_factor(spec: TrainSpec) -> float:
    """k = batch of an update / base batch; 1 where there is no base batch."""
    return 1.0 if spec.batch.base is None else spec.update_batch / spec.batch.base


def rate_factor(spec: TrainSpec) -> float:
    """By how much the learning rate is multiplied: k (paper 4, section 2.1), sqrt(k) (paper 1, section 5) or 1."""
    k = batch_factor(spec)
    return {"none": 1.0, "sqrt": math.sqrt(k), "linear": k}[spec.scaling.name]


def scaled_rate(spec: TrainSpec) -> float:
    """The learning rate at the batch of this run, before any schedule."""
    return spec.optimizer.lr * rate_factor(spec)


def scaled_decay(spec: TrainSpec) -> float:
    """The weight decay at the batch of this run."""
    w, k = spec.optimizer.weight_decay, batch_factor(spec)
    if spec.scaling.weight_decay == "keep" or spec.batch.base is None:
        return w
    return exact_decay(w, spec.optimizer.lr, k) if spec.scaling.weight_decay == "exact" else math.sqrt(k) * w


def exact_decay(w: float, e: float, k: float) -> float:
    """w' with 1 - sqrt(k) e w' = (1 - e w)^k: one update decays as much as k at the base batch (paper 1, section 5).

    w, e: weight decay and learning rate at the base batch.
    """
    return -math.expm1(k * math.log1p(-e * w)) / (math.sqrt(k) * e)


def momentum_correction(before: float, lr: float) -> float:
    """What v of paper 4's equation 10 must be multiplied by when the learning rate goes from `before` to `lr`.

    A rate of 0 has made v 0, and there is no rate before the first update: nothing to correct then.
    """
    return lr / before if before else 1.0
