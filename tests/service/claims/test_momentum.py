"""The momentum that is fitted to a path: what it is where it is known, by programs written out."""

import heapq

import numpy as np
import pytest
import torch

from service.claims.experiments.momentum import (
    CURVATURES,
    FEATURES,
    Array,
    FittedMomentum,
    RecordingSGD,
    examples,
    momentum_of,
    recorded,
)

RATE, UPDATES, BATCH = 0.3, 200, 128


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("first", [0.0, 0.7])
def test_a_path_without_noise_has_just_its_momentum(momentum: float, first: float) -> None:
    weights, velocity = np.zeros(FEATURES), np.full(FEATURES, first)
    path = [weights]
    for _ in range(UPDATES):
        velocity = momentum * velocity + (1 - momentum) * CURVATURES * (weights - 1.0)
        weights = weights - RATE * velocity
        path.append(weights)
    assert momentum_of(np.array(path), RATE) == pytest.approx(momentum, abs=1e-12)


@pytest.mark.parametrize(("workers", "within"), [(4, 0.08), (16, 0.04)])
def test_asynchronous_sgd_has_the_momentum_of_its_workers(workers: int, within: float) -> None:
    """Mitliagkas et al. 2016: 1 - 1/M, where computing times are exponentially distributed."""
    found = [momentum_of(asynchronous(workers, np.random.default_rng(seed)), RATE) for seed in range(4)]
    assert np.mean(found) == pytest.approx(1 - 1 / workers, abs=within)


def asynchronous(workers: int, draw: np.random.Generator) -> Array:
    """The path of a parameter server: whoever has computed a gradient at the weights that it fetched pushes it."""
    (features, numbers), _ = examples()
    x, y = features.double().numpy(), numbers.double().numpy()
    weights, order = np.zeros(FEATURES), iter(draw.permutation(len(x)).reshape(UPDATES, BATCH))
    path, fetched = [weights], [weights] * workers
    ends = [(draw.exponential(), worker) for worker in range(workers)]
    heapq.heapify(ends)
    for batch in order:
        now, worker = heapq.heappop(ends)
        weights = weights - RATE * x[batch].T @ (x[batch] @ fetched[worker] - y[batch]) / BATCH
        path.append(weights)
        fetched[worker] = weights
        heapq.heappush(ends, (now + draw.exponential(), worker))
    return np.array(path)


def test_weights_are_those_of_sgd_and_stand_behind_them_after_each_update() -> None:
    (features, numbers), _ = examples(count=30)
    model, task = recorded(updates=3), FittedMomentum(RATE)
    ours = RecordingSGD(model.parameters(), lr=0.1, momentum=0.5)
    theirs = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.zeros_(theirs.weight)
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.5)
    path = [np.zeros(FEATURES)]
    for batch in torch.arange(30).view(3, 10):
        for optimizer, loss in (
            (ours, task.loss(model, (features[batch], numbers[batch])).total / 10),
            (sgd, ((theirs(features[batch]).squeeze(1) - numbers[batch]) ** 2).mean() / 2),
        ):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        path.append(theirs.weight.detach().double().numpy().ravel())
    np.testing.assert_allclose(model.path, np.array(path), rtol=1e-5)
    with torch.no_grad():
        assert task.metrics(model, (features, numbers))["momentum"].value == momentum_of(model.path, RATE)
