"""The gradient noise scale of `sync` against the formula, written out in a serial program."""

import statistics

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import Run, clip_as_torch, digits_spec, run_all_reduce, step_batches
from trainers.algorithms.base import StepReport
from trainers.optim.noise_scale import NoiseEstimate, estimate_noise, noise_scale
from trainers.spec import TrainSpec

LR = 0.05


def spec(virtual: int, count: int, *, measures: bool = True, **more: object) -> TrainSpec:
    fields: dict[str, object] = {
        "algorithm": {"name": "sync", "noise_scale": measures},
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "sgd", "lr": LR, "weight_decay": 0.0},
        "data": {"name": "digits", "limit": 203},
    }
    return digits_spec(fields | more)


def small_net(seed: int) -> nn.Module:
    """Without batch norm or dropout, so that an example's gradient is its own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 17), nn.Tanh(), nn.Linear(17, 10))


def run_of(virtual: int, count: int, **more: object) -> Run:
    return Run(spec(virtual, count, **more), net=small_net)


def estimates(reports: list[StepReport]) -> list[NoiseEstimate]:
    return [report.noise for report in reports if report.noise is not None]


def serial_estimates(run: Run) -> list[tuple[float, float]]:
    """McCandlish et al. 2018, appendix A.1, in float64 on one process: |G|^2 and S of each step whose minibatches are
    of one size."""
    model, found = small_net(run.spec.seed).double(), list[tuple[float, float]]()
    parameters = list(model.parameters())

    def mean_gradient(images: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(model(images.double()), labels)
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)])

    for step in step_batches(run):
        small = [mean_gradient(batch.images, batch.labels) for batch in step]
        images, labels = torch.cat([b.images for b in step]), torch.cat([b.labels for b in step])
        big = mean_gradient(images, labels)
        b_small, b_big = len(step[0]), len(labels)
        if len({len(batch) for batch in step}) == 1 and len(step) == run.spec.workers.num_virtual:
            small_square = sum(float(gradient @ gradient) for gradient in small) / len(small)
            big_square = float(big @ big)
            squared_norm = (b_big * big_square - b_small * small_square) / (b_big - b_small)
            trace = (small_square - big_square) / (1 / b_small - 1 / b_big)
            found.append((squared_norm, trace))
        for parameter, part in zip(parameters, torch.split(big, [p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        if run.spec.clip is not None:
            clip_as_torch(run.spec.clip, model)
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(LR * parameter.grad)
    return found


@pytest.mark.parametrize("virtual", [2, 3, 5])
@pytest.mark.parametrize("clip", [None, {"norm": 0.3}, {"value": 0.01}])
def test_equals_the_formula_written_out(virtual: int, clip: dict[str, float] | None) -> None:
    run = run_of(virtual, 2, clip=clip)
    found, expected = estimates(run_all_reduce(run).reports), serial_estimates(run)
    assert len(found) == len(expected) > 5
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=2e-3, abs=1e-5)


@pytest.mark.parametrize("virtual", [3, 5])
def test_same_bits_on_any_number_of_workers(virtual: int) -> None:
    first = estimates(run_all_reduce(run_of(virtual, 1)).reports)
    for count in range(2, virtual + 1):
        assert estimates(run_all_reduce(run_of(virtual, count)).reports) == first


def test_a_step_whose_minibatches_differ_in_size_tells_nothing() -> None:
    run = run_of(3, 2)
    uneven = sum(len({len(batch) for batch in step}) > 1 or len(step) < 3 for step in step_batches(run))
    steps = len(list(step_batches(run)))
    assert uneven
    assert len(estimates(run_all_reduce(run).reports)) == steps - uneven


@pytest.mark.parametrize("fields", [{}, {"wire": "bfloat16"}, {"clip": {"norm": 0.3}}])
def test_measuring_changes_no_bit_of_the_run(fields: dict[str, object]) -> None:
    measured, bare = (run_all_reduce(run_of(3, 2, measures=measures, **fields)) for measures in (True, False))
    assert torch.equal(measured.params, bare.params)
    assert not estimates(bare.reports)


def test_the_mean_of_many_estimates_is_the_true_scale() -> None:
    """Of gradients that are drawn from a normal distribution with a known mean and covariance."""
    generator = torch.Generator().manual_seed(1)
    mean, spread = torch.full((50,), 0.2, dtype=torch.float64), 1.5
    squares = traces = 0.0
    for _ in range(2000):
        drawn = mean + spread * torch.randn(4, 8, 50, generator=generator, dtype=torch.float64)
        small, big = drawn.mean(1), drawn.mean((0, 1))
        found = estimate_noise(float((small**2).sum(1).mean()), float(big @ big), 8, 32)
        squares, traces = squares + found.squared_norm, traces + found.trace
    assert noise_scale(squares, traces) == pytest.approx(50 * spread**2 / float(mean @ mean), rel=0.03)
    assert noise_scale(-1.0, 1.0) is None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"algorithm": {"name": "sync", "noise_scale": True, "form": "parameter_server"}}, "use form: all_reduce"),
        ({"algorithm": {"name": "sync", "noise_scale": True, "reduction": "fast"}}, "use reduction: canonical"),
        ({"workers": {"count": 1, "virtual": 1}}, "a lone virtual worker has no smaller batch; set workers.virtual"),
    ],
)
def test_where_it_is_not_known_it_is_refused(fields: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        spec(3, 1, **fields)


def test_a_scaled_loss_does_not_scale_it() -> None:
    scaled, bare = (estimates(run_all_reduce(run_of(2, 1, precision=name)).reports) for name in ("float16", "float32"))
    assert len(scaled) > 10
    found, expected = (statistics.median(each.trace for each in several) for several in (scaled, bare))
    assert found == pytest.approx(expected, rel=0.3)  # by the scale's factor or its square it would be thousands off
