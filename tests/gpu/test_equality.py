"""On a GPU `sync` equals serial PyTorch on that GPU, and itself on any number of workers that share it, bit for bit."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.optimizers import torch_optimizer
from tests.gpu.runs import gpu_spec, placed, train_alone, train_together
from trainers.data.batches import Batch
from trainers.models.dropout import replace_dropout
from trainers.models.registry import build_model
from trainers.spec import TrainSpec
from trainers.training.setup import Setup, set_up
from trainers.training.work import synchronous


def steps(setup: Setup) -> Iterator[list[Batch]]:
    """The minibatches of each step."""
    for work in synchronous(setup.dataset, setup.order, range(setup.order.num_virtual), setup.spec.epochs):
        yield [minibatch.batch for minibatch in work.minibatches if minibatch.batch is not None]


def serial(spec: TrainSpec) -> Tensor:
    """Plain PyTorch on the GPU: the gradients of sums accumulate, and are divided once. (P,) on the CPU."""
    setup = set_up(spec, None)
    data = setup.dataset
    model = placed(build_model(spec.model, data.facts.classes, data.facts.inputs, spec.seed), setup)
    draws, optimizer, schedule = replace_dropout(model, spec.seed), torch_optimizer(spec, model), setup.schedule
    seen = 0
    for step in steps(setup):
        optimizer.zero_grad()
        for batch in step:
            draws.set(batch.epoch, batch.examples)
            F.cross_entropy(model(batch.images), batch.labels, reduction="sum").backward()
        examples = sum(len(batch) for batch in step)
        for parameter in model.parameters():
            parameter.grad /= examples
        for group in optimizer.param_groups:
            group["lr"] = schedule(seen)
        optimizer.step()
        seen += examples
    return setup.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


@pytest.mark.parametrize("model", ["tests.gpu.nets:small_net", "convnet"])
@pytest.mark.parametrize("virtual", [1, 2])
def test_one_worker_is_serial_pytorch_on_the_same_gpu(model: str, virtual: int, tmp_path: Path) -> None:
    """Without batch norm's running statistics, which serial PyTorch has once and virtual workers each for itself."""
    spec = gpu_spec(1, virtual, model=model)
    assert torch.equal(train_alone(spec, tmp_path).params, serial(spec))


def test_the_test_above_can_fail(tmp_path: Path) -> None:
    assert not torch.equal(train_alone(gpu_spec(1, 1), tmp_path).params, serial(gpu_spec(1, 1, seed=4)))


def test_four_virtual_workers_have_the_same_bits_on_one_two_and_three_workers_of_one_gpu(tmp_path: Path) -> None:
    alone = train_alone(gpu_spec(1, 4), tmp_path)
    for count in (2, 3):
        together = train_together(gpu_spec(count, 4), tmp_path / str(count))
        assert torch.equal(together.params, alone.params)
        assert torch.equal(together.rows, alone.rows)


@pytest.mark.parametrize("fewer", [{"precision": "tf32"}, {"precision": "bfloat16"}, {"wire": "bfloat16"}])
def test_fewer_bits_are_near_float32_and_the_same_on_any_number_of_workers(
    fewer: dict[str, str], tmp_path: Path
) -> None:
    alone = train_alone(gpu_spec(1, 2, **fewer, epochs=1), tmp_path / "alone")
    together = train_together(gpu_spec(2, 2, **fewer, epochs=1), tmp_path / "together")
    exact = train_alone(gpu_spec(1, 2, epochs=1), tmp_path / "exact")
    assert torch.equal(together.params, alone.params)
    assert not torch.equal(alone.params, exact.params)
    assert alone.loss == pytest.approx(exact.loss, rel=0.05)


LANGUAGE = {
    "data": {"name": "tests.gpu.nets:windows"}, "task": "language_model", "batch": 2, "epochs": 1,
    "precision": "bfloat16", "optimizer": "adamw",
}  # fmt: skip


@pytest.mark.parametrize("compiles", [False, True])
def test_attention_has_the_same_bits_on_any_number_of_workers_and_again(compiles: bool, tmp_path: Path) -> None:
    """Its fast kernels have another form for that, which is slower."""
    model = {"name": "gpt", "kwargs": {"layers": 2, "heads": 4, "width": 256}, "compile": compiles}
    fields = LANGUAGE | {"model": model}
    alone = train_alone(gpu_spec(1, 2, **fields), tmp_path / "alone")
    assert torch.equal(train_alone(gpu_spec(1, 2, **fields), tmp_path / "again").params, alone.params)
    assert torch.equal(train_together(gpu_spec(2, 2, **fields), tmp_path / "together").params, alone.params)


def test_again_it_has_the_same_bits_and_other_layers_too(tmp_path: Path) -> None:
    """ResNet-18, whose first pooling overlaps."""
    spec = gpu_spec(1, 2, model="resnet18", epochs=1)
    assert torch.equal(train_alone(spec, tmp_path / "one").params, train_alone(spec, tmp_path / "again").params)


@pytest.mark.parametrize("count", [1, 2])
def test_the_fast_reduction_has_the_same_numbers(count: int, tmp_path: Path) -> None:
    fast = {"name": "sync", "reduction": "fast"}
    found = train_together(gpu_spec(count, 2, algorithm=fast), tmp_path / "fast")
    torch.testing.assert_close(found.params, train_alone(gpu_spec(1, 2), tmp_path).params, rtol=2e-4, atol=2e-5)


def test_a_gpu_has_the_numbers_of_the_cpu(tmp_path: Path) -> None:
    on_cpu = train_alone(gpu_spec(1, 2, device="cpu", epochs=1), tmp_path / "cpu")
    on_gpu = train_alone(gpu_spec(1, 2, epochs=1), tmp_path / "gpu")
    torch.testing.assert_close(on_gpu.params, on_cpu.params, rtol=1e-3, atol=1e-4)
    assert on_gpu.loss == pytest.approx(on_cpu.loss, rel=1e-3)
