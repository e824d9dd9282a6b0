"""16 bits: what plain autocast computes, near to float32, with the same bits on any number of workers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.equivalence.harness import Run, run_all_reduce, run_through_shards, serial, step_batches
from tests.equivalence.optimizers import torch_optimizer
from tests.equivalence.tasks.test_resumed import spec as small
from tests.equivalence.tasks.test_serial import BACKPROP, OPTIMIZER, PLAIN, squared_error
from tests.local_runs import LocalRun
from trainers.data.batches import Batch
from trainers.models.passes import precision
from trainers.optim.loss_scale import FIRST, LossScale
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint
from trainers.training.setup import set_up

CPU = torch.device("cpu")
TASKS = ("smoothed classification", "regression", "language model")
DISTANCE = 0.1
"""Of the parameters after one epoch from those of float32, as a share of the way that training has moved these: the L2
norm over all of them. Found: 0.006 to 0.05."""


def run_of(fields: dict, **changes: object) -> Run:
    usual = {"optimizer": OPTIMIZER, **PLAIN, **fields, "epochs": 1, "precision": "bfloat16"}
    return Run(TrainSpec.model_validate(usual | changes))


def trained(run: Run) -> Tensor:
    through = run.spec.algorithm.traits.uses_parameter_server
    return (run_through_shards if through else run_all_reduce)(run).params


def distance(found: Tensor, expected: Tensor, start: Tensor) -> float:
    return float((found - expected).norm() / (expected - start).norm())


@pytest.mark.parametrize("name", TASKS)
def test_sync_is_near_float32_and_has_its_own_bits_on_any_number_of_workers(name: str, specs: dict) -> None:
    runs = [run_of(specs[name], workers={"count": count, "virtual": 3}) for count in (1, 2, 3)]
    first, *others = map(trained, runs)
    for other in others:
        assert torch.equal(first, other)
    exact = trained(run_of(specs[name], precision="float32"))
    assert 0 < distance(first, exact, runs[0].start().buffers.params) < DISTANCE


@pytest.mark.parametrize("name", TASKS)
def test_gradients_that_travel_in_16_bits_leave_it_nearer_to_float32(name: str, specs: dict) -> None:
    fields = {"workers": {"count": 1, "virtual": 3}, "precision": "float32"}
    run, plain = (run_of(specs[name], **fields, wire=wire) for wire in ("bfloat16", "float32"))
    exact, start = trained(plain), run.start().buffers.params
    assert 0 < distance(trained(run), exact, start) < DISTANCE / 10


def test_it_is_what_plain_autocast_computes(specs: dict) -> None:
    def autocast(model: nn.Module, batch: Batch) -> tuple[Tensor, float]:
        with torch.autocast("cpu", torch.bfloat16):
            return squared_error(model, batch)

    run = run_of(specs["regression"])
    expected = serial(run, step_batches(run), "sum", autocast)
    torch.testing.assert_close(trained(run), expected, rtol=1e-4, atol=1e-5)


FEW = {"name": "digits", "limit": 63}
ALGORITHMS = {
    "downpour": ("regression", {"algorithm": "downpour", "workers": 1, "ps": 1}),
    "backprop": ("smoothed classification", {"algorithm": BACKPROP, "workers": 1, "ps": 1, "data": FEW}),
    "fast": ("regression", {"algorithm": {"name": "sync", "reduction": "fast", "bucket_bytes": 2000}}),
    "mixed": ("regression", {"algorithm": {"name": "mixed", "group": 3, "max_staleness": 0}, "ps": 1}),
    "admm": ("regression", {"algorithm": "admm"}),
    "parallel_sgd": ("regression", {"algorithm": {"name": "parallel_sgd", "average_every": 2}}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_computes_in_it(name: str, specs: dict) -> None:
    task, changes = ALGORITHMS[name]
    run = run_of(specs[task], **changes)
    expected = trained(run_of(specs[task], precision="float32", **changes))
    assert 0 < distance(trained(run), expected, run.start().buffers.params) < DISTANCE


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_run_goes_on_on_other_workers_with_the_bits_of_one_that_was_not_stopped(
    precision: str, specs: dict, tmp_path: Path
) -> None:
    def run(folder: str, count: int, limit: int | None = None, **changes: object) -> Checkpoint:
        train = small(specs["regression"], count, **{"precision": precision, **changes})
        return read_checkpoint(LocalRun(train, tmp_path / folder, limit=limit).train())

    whole, half = run("whole", 1), run("half", 2, limit=2)
    begin = {"checkpoint": {"resume": str(tmp_path / "half" / "checkpoint")}}
    rest, exact = run("rest", 3, **begin), run("exact", 3, precision="float32", **begin)
    for name, value in whole.model.items():
        assert value.dtype == torch.float32
        assert torch.equal(rest.model[name], value)
    assert any(not torch.equal(exact.model[name], value) for name, value in rest.model.items())
    is_scaled = precision == "float16"
    assert (half.position.loss_scale < FIRST) == is_scaled
    one, other = rest.position, whole.position
    assert (one.loss_scale, one.scaled_updates) == (other.loss_scale, other.scaled_updates)


def test_evaluation_computes_in_it_and_gives_float32() -> None:
    found = []
    for name in ("float32", "bfloat16"):
        setup = set_up(TrainSpec.model_validate({"data": "digits", "model": "mlp", "precision": name}), None)
        with setup.dataset, setup.replica.evaluating(setup.replica.initial_params(), {}) as model:
            found.append(model(next(iter(setup.dataset.test_batches(50))).images))
    exact, rounded = found
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, rounded.bfloat16().float())
    torch.testing.assert_close(rounded, exact, rtol=0.02, atol=0.02)
    assert not torch.equal(rounded, exact)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"precision": "tf32"}, "tf32 is of GPUs; set workers.gpus"),
        ({"precision": "tf32", "device": "cpu", "workers": {"gpus": 1}}, "tf32 is of GPUs"),
        ({"precision": "bfloat16", "algorithm": "hybrid"}, "algorithm: sync"),
        ({"precision": "float16", "algorithm": "downpour"}, "which only sync does"),
        ({"precision": "float16", "algorithm": {"name": "sync", "reduction": "fast"}}, "or bfloat16"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        TrainSpec.model_validate(fields)


def test_a_processor_without_bfloat16_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert "neither AVX512-BF16 nor AMX" in precision.emulated("bfloat16", CPU)
    assert "AVX512-FP16" in precision.emulated("float16", CPU)
    assert not precision.emulated("float32", CPU)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert not precision.emulated("bfloat16", CPU)


def with_scaler(run: Run, scales: list[float]) -> Tensor:
    """Plain PyTorch in float16 with its own scaler. scales: filled with the scale after each step."""
    model = run.model()
    optimizer, scaler = torch_optimizer(run.spec, model), torch.amp.GradScaler("cpu")
    for step in step_batches(run):
        optimizer.zero_grad()
        for batch in step:
            with torch.autocast("cpu", torch.float16):
                loss, _ = squared_error(model, batch)
            scaler.scale(loss).backward()
        for parameter in model.parameters():
            parameter.grad /= sum(map(len, step))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return run.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


def test_float16_leaves_out_the_steps_that_gradscaler_does_on_any_number_of_workers(specs: dict) -> None:
    fields = {"precision": "float16", "epochs": 2}
    runs = [run_of(specs["regression"], workers={"count": count, "virtual": 3}, **fields) for count in (1, 2, 3)]
    scales: list[float] = []
    expected = with_scaler(runs[0], scales)
    assert min(scales[:-1]) == scales[-1] < scales[0]  # some are left out, and some not
    for found in map(run_all_reduce, runs):
        torch.testing.assert_close(found.params, expected, rtol=1e-4, atol=1e-5)
        told = [report.loss_scale.factor for report in found.reports]
        assert told == scales * (len(told) // len(scales))


@pytest.mark.parametrize("name", TASKS)
def test_float16_is_near_float32(name: str, specs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a scale at which no step is left out."""
    runs = [run_of(specs[name], precision=precision) for precision in ("float32", "float16")]
    start = runs[0].start()
    monkeypatch.setattr(Run, "start", lambda self: replace(start, loss_scale=LossScale(64.0)))
    exact, found = map(trained, runs)
    assert 0 < distance(found, exact, start.buffers.params) < DISTANCE / 2


def test_a_scale_grows_by_and_by() -> None:
    assert LossScale(4.0, 1998).after(is_finite=True) == LossScale(4.0, 1999)
    assert LossScale(4.0, 1999).after(is_finite=True) == LossScale(8.0)
    assert LossScale(4.0, 1999).after(is_finite=False) == LossScale(2.0)
