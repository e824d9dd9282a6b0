"""Linear regression whose parameters keep their own path, and the momentum that explains it best.

Mitliagkas et al. 2016, section 3: where M workers take exponentially distributed times for a gradient, the expected
update is (1 - 1/M) times the one before it, less the rate times the gradient here and now divided by M.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from service.claims.experiments.networks import DRAWN
from trainers import Loss, Mean, Measure, Task

FEATURES = 16
CURVATURES = np.geomspace(1.0, 0.05, FEATURES)
"""Variances of the features, and so of the loss along each of them; all weights are 1 where it is least."""
NOISE = 0.3
"""Standard deviation of what no weights explain."""
MOMENTA = np.unique(np.concatenate([np.linspace(0.0, 0.9, 91), 1 - np.geomspace(0.1, 0.01, 60)]))
"""What is tried."""

Array = npt.NDArray[np.float64]


def examples(root: str = "", count: int = 25_600, tested: int = 64) -> tuple[tuple[Tensor, Tensor], ...]:
    """Features (n, 16) and numbers (n,), drawn from one seed: those that are trained on, and others."""
    drawn = torch.Generator().manual_seed(0)
    features = torch.randn(count + tested, FEATURES, generator=drawn) * torch.from_numpy(CURVATURES).sqrt().float()
    numbers = features.sum(1) + NOISE * torch.randn(count + tested, generator=drawn)
    return (features[:count], numbers[:count]), (features[count:], numbers[count:])


class Recorded(nn.Module):
    """Weights from 0 on, and behind them in the same parameter what they were after each update."""

    def __init__(self, updates: int, think_s: float) -> None:
        """think_s: Mean of the exponentially distributed time that a minibatch takes."""
        super().__init__()
        self.think_s = think_s
        self.weights_and_path = nn.Parameter(torch.zeros((1 + updates) * FEATURES))

    def forward(self, features: Tensor) -> Tensor:
        """(n, 16) -> (n, 1)."""
        if self.training and self.think_s:
            time.sleep(DRAWN.expovariate(1 / self.think_s))
        return features @ self.weights_and_path[:FEATURES, None]

    @property
    def path(self) -> Array:
        """(updates + 1, 16): the weights before the first update, and after each."""
        path = self.weights_and_path.detach().double().numpy().reshape(-1, FEATURES)[1:]
        return np.concatenate([np.zeros((1, FEATURES)), path])


def recorded(updates: int, think_s: float = 0.0, **_: Any) -> Recorded:
    """As a spec names it. updates: As many as the run makes."""
    return Recorded(updates, think_s)


class RecordingSGD(torch.optim.Optimizer):
    """SGD with momentum, as torch has it, which writes down where each update leads."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "there is no loss to compute again"
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                velocity = state.setdefault("velocity", torch.zeros_like(parameter))
                velocity.mul_(group["momentum"]).add_(parameter.grad)
                state["updates"] = updates = state.get("updates", 0.0) + 1.0
                vector = parameter.data.view(-1)
                vector[:FEATURES].sub_(velocity.view(-1)[:FEATURES], alpha=group["lr"])
                place = vector[int(updates) * FEATURES :][:FEATURES]
                place.copy_(vector[: len(place)])


class FittedMomentum(Task):
    """Squared error; of a finished run, the momentum of its path."""

    headline = "momentum"

    def __init__(self, rate: float) -> None:
        """rate: Of a run without momentum; the learning rate divided by 1 - momentum."""
        self.rate = rate

    def loss(self, model: Any, data: Any) -> Loss:
        features, numbers = data
        return Loss(((model(features).squeeze(1) - numbers) ** 2).sum() / 2, len(numbers))

    def metrics(self, model: Any, data: Any) -> Mapping[str, Measure]:
        count, fitted = len(data[1]), momentum_of(model.path, self.rate)
        return {**super().metrics(model, data), "momentum": Mean(fitted * count, count)}


def momentum_of(path: Array, rate: float) -> float:
    """The momentum m with which heavy-ball updates of rate (1 - m) times `rate` come nearest to a path of weights.

    With m, the t-th update is -rate times v[t] = m v[t - 1] + (1 - m) g[t], where g[t] is the gradient of the expected
    loss at the t-th weights. v[-1] is whatever suits best: workers that begin together act as if they had been at the
    first weights for long, and one worker begins without any velocity.

    Args:
        path: (T + 1, 16), as in `Recorded.path`.
        rate: Of plain SGD.
    """
    gradients, updates = CURVATURES * (path[:-1] - 1.0), np.diff(path, axis=0) / -rate
    errors = [_error(momentum, gradients, updates) for momentum in MOMENTA]
    return float(MOMENTA[int(np.argmin(errors))])


def _error(momentum: float, gradients: Array, updates: Array) -> float:
    """Squared distance of a path's updates to those with this momentum, the best first velocity given."""
    velocity, missing = np.zeros(FEATURES), np.empty_like(updates)
    for t, gradient in enumerate(gradients):
        velocity = momentum * velocity + (1 - momentum) * gradient
        missing[t] = updates[t] - velocity
    first = momentum ** np.arange(1.0, len(updates) + 1)  # what is left of it in each update
    power = float(first @ first)
    explained = float(((first @ missing) ** 2).sum()) / power if power else 0.0
    return math.fsum((missing**2).ravel()) - explained
