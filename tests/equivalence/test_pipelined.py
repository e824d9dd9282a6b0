"""Asynchronous back-propagation: equal to a serial program written out, and to serial SGD where nothing is delayed."""

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import Outcome, Run, build_net, run_through_shards, serial, step_batches, written_loss
from tests.equivalence.test_downpour import spec
from trainers.algorithms.downpour.config import DownpourConfig
from trainers.errors import SpecRejected
from trainers.models.dropout import replace_dropout
from trainers.spec import TrainSpec, field_errors
from trainers.training.setup import set_up


def delayed(groups: int, delay: int, count: int = 1, staleness: int | None = -1, **more: object) -> TrainSpec:
    bound = (groups - 1) * delay if staleness == -1 else staleness
    algorithm = {"push": "layerwise", "backprop": {"groups": groups, "delay": delay}, "max_staleness": bound}
    return spec(count, algorithm=algorithm, **more)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("placement", ["balanced", "round_robin"])
def test_without_a_delay_it_is_serial_sgd_bit_for_bit(groups: int, placement: str) -> None:
    run = Run(delayed(groups, 0, ps={"shards": 2, "placement": placement}))
    assert torch.equal(run_through_shards(run).params, serial(run, step_batches(run), "mean"))


def cut(model: nn.Module, groups: int) -> list[list[str]]:
    """Layers of the small net by group, as equal shares of four layers are."""
    layers = ["conv", "norm", "fc1", "fc2"]
    return [layers[:2], layers[2:]] if groups == 2 else [[layer] for layer in layers]


def run_layers(model: nn.Module, layers: list[str], x: Tensor) -> Tensor:
    """The part of the small net's forward pass between two cuts."""
    steps = {
        "conv": model.conv,
        "norm": lambda x: F.max_pool2d(torch.relu(model.norm(x)), 2).flatten(1),
        "fc1": lambda x: torch.relu(model.fc1(x)),
        "fc2": model.fc2,
    }
    for layer in layers:
        x = steps[layer](model.drop(x) if layer == "fc1" else x)
    return x


def written_out(run: Run, groups: int, delay: int, lr: float) -> Tensor:
    """Step t: minibatch t goes forward; group m goes backward with minibatch t - (M - m) d, whose forward pass is made
    again with the parameters that it was made with, each group for itself; then it updates its parameters."""
    batches = [batch for (batch,) in step_batches(run)]
    model = build_net(run.spec.seed)
    draws = replace_dropout(model, run.spec.seed)
    parts = cut(model, groups)
    history: list[dict[str, Tensor]] = []  # parameters of each step
    errors: dict[int, Tensor] = {}  # minibatch -> the error signal that the group above left
    decay = run.spec.optimizer.weight_decay
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    for t in range(len(batches) + (groups - 1) * delay):
        history.append({name: p.clone() for name, p in params.items()})
        for m in reversed(range(groups)):
            s = t - (groups - 1 - m) * delay
            if not 0 <= s < len(batches):
                continue
            for name, p in model.named_parameters():
                p.data = history[s][name].clone()
            draws.set(batches[s].epoch, batches[s].examples)
            x = batches[s].images
            for below in parts[:m]:
                x = run_layers(model, below, x)
            x = x.detach().requires_grad_(m > 0)
            y = run_layers(model, parts[m], x)
            if m == groups - 1:
                labels = batches[s].labels
                y, errors[s] = written_loss(run.spec, y, labels) / len(labels), torch.tensor(1.0)
            mine = [n for n in params if n.partition(".")[0] in parts[m]]
            wanted = [dict(model.named_parameters())[n] for n in mine]
            inputs = [*wanted, x] if m else wanted
            found = torch.autograd.grad(y, inputs, errors.pop(s))
            if m:
                errors[s] = found[-1]
            for name, gradient in zip(mine, found, strict=False):
                shrinks = 0.0 if name.startswith("norm") else decay
                params[name] = params[name] - lr * (gradient + shrinks * params[name])
    return run.layout.flatten(params)


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic"])
@pytest.mark.parametrize(("groups", "delay"), [(2, 1), (2, 3), (4, 1), (4, 2)])
def test_a_delay_is_the_program_written_out(groups: int, delay: int, loss: str) -> None:
    run = Run(delayed(groups, delay, optimizer={"name": "sgd", "lr": 0.05, "weight_decay": 0.01}, loss=loss))
    outcome = run_through_shards(run)
    expected = written_out(run, groups, delay, 0.05)
    torch.testing.assert_close(outcome.params, expected, rtol=1e-5, atol=1e-6)
    plain = serial(run, step_batches(run), "mean")
    assert (outcome.params - plain).abs().max() > 1e-3  # the delay makes a difference


def everything_once(outcome: Outcome) -> None:
    assert outcome.leases is not None
    for epoch in range(2):
        audit = outcome.leases.audit(epoch)
        assert (audit.trained, audit.lost, audit.duplicated) == (203, 0, 0)


def test_the_delay_is_each_groups_staleness_and_in_the_reports() -> None:
    outcome = run_through_shards(Run(delayed(4, 2)))
    everything_once(outcome)
    number = 2 * 29
    assert [report.delays for report in outcome.reports] == [(6, 4, 2, 0)] * number
    for delay, counts in zip((6, 4, 2, 0), outcome.group_staleness, strict=True):
        assert counts[delay] == number - delay
        assert sum(counts.values()) == number  # the first pushes, of the first parameters, are less stale


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("staleness", [3, 4, None])
def test_every_example_once_in_every_group_and_the_pipeline_drains(seed: int, staleness: int | None) -> None:
    run = Run(delayed(4, 1, count=3, staleness=staleness))
    outcome = run_through_shards(run, seed=seed)
    everything_once(outcome)
    assert sum(report.examples for report in outcome.reports) == 2 * 203


def test_groups_that_go_backward_side_by_side_compute_the_same() -> None:
    run = Run(delayed(4, 1))
    one = run_through_shards(run)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        three = run_through_shards(run)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(one.params, three.params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"push": "whole"}, "use push: layerwise"),
        ({"num_push": 2}, "use num_push: 1"),
        ({"num_fetch": 2}, "use num_push: 1 and num_fetch: 1"),
        ({"max_staleness": 1}, "use max_staleness: 4 or more"),
        ({"backprop": {"groups": 64, "delay": 64}}, "256 at most"),
    ],
)
def test_what_is_not_defined_is_refused(fields: dict[str, object], message: str) -> None:
    algorithm = {"name": "downpour", "push": "layerwise", "backprop": {"groups": 3, "delay": 2}} | fields
    with pytest.raises(ValidationError, match=message) as caught:
        TrainSpec.model_validate({"algorithm": algorithm})
    assert [error.pointer for error in field_errors(caught.value, TrainSpec)] == ["/algorithm/backprop"]


def test_a_model_that_is_no_chain_of_so_many_groups_is_refused_with_what_would_work() -> None:
    config = DownpourConfig(push="layerwise", backprop={"groups": 5})
    run = Run(spec())
    with pytest.raises(ValueError, match=r"backprop.groups: the model is a chain of 4 groups of layers; use at most 4"):
        config.parameter_groups(build_net(0), run.layout)


def test_a_model_that_allows_no_such_groups_is_refused_with_the_field() -> None:
    algorithm = {"name": "downpour", "push": "layerwise", "backprop": {"groups": 3}}
    with pytest.raises(SpecRejected, match=r"^algorithm.backprop.groups: .* 2 groups of layers; use at most 2"):
        set_up(TrainSpec.model_validate({"algorithm": algorithm, "model": "mlp"}), None)
