"""Every algorithm on a GPU, over the local transport, and what its checkpoints are good for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.optimizers import torch_optimizer
from tests.gpu.runs import gpu_spec, placed
from tests.local_runs import LocalRun
from trainers.models.dropout import replace_dropout
from trainers.models.registry import build_model
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint
from trainers.training.setup import set_up

DOWNPOUR = {"name": "downpour", "num_push": 1, "num_fetch": 1, "max_staleness": 0}
PLAIN = {"model": "lenet5", "optimizer": {"name": "momentum", "lr": 0.01}, "epochs": 1}


def trained(spec: TrainSpec, folder: Path) -> Tensor:
    """(P,), from the checkpoint at its end."""
    run = LocalRun(spec, folder)
    return run.setups[0].layout.flatten(read_checkpoint(run.train()).model)


def serial_through_the_cpu(spec: TrainSpec) -> Tensor:
    """Gradients of plain PyTorch on the GPU, updates on the CPU, where the shards make theirs."""
    setup = set_up(spec, None)
    data = setup.dataset
    model, there = (build_model(spec.model, data.facts.classes, data.facts.inputs, spec.seed) for _ in range(2))
    draws, optimizer = replace_dropout(placed(there, setup), spec.seed), torch_optimizer(spec, model)
    plan = [(e, setup.order.examples(e, i)) for e in range(spec.epochs) for i in range(setup.order.minibatches)]
    for seen, batch in enumerate(data.batches(plan)):
        there.load_state_dict(dict(model.named_parameters()), strict=False)
        there.zero_grad()
        draws.set(batch.epoch, batch.examples)
        loss = F.cross_entropy(there(batch.images), batch.labels, reduction="sum")
        (loss / len(batch)).backward()
        for mine, theirs in zip(model.parameters(), there.parameters(), strict=True):
            assert theirs.grad is not None
            mine.grad = theirs.grad.cpu()
        for group in optimizer.param_groups:
            group["lr"] = setup.schedule(seen * len(batch))
        optimizer.step()
    return setup.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


@pytest.mark.parametrize("push", ["whole", "layerwise"])
def test_downpour_of_one_worker_is_serial_pytorch(push: str, tmp_path: Path) -> None:
    spec = gpu_spec(1, algorithm=DOWNPOUR | {"push": push}, ps=2)
    found, expected = trained(spec, tmp_path / "run"), serial_through_the_cpu(spec)
    assert torch.equal(found[: len(expected)], expected)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "sync", "form": "parameter_server"},
        {"name": "mixed", "group": 2, "max_staleness": 0},
        {"name": "parallel_sgd"},
        {"name": "diloco", "average_every": 3},
        {"name": "diloco", "average_every": 3, "fragments": 2, "delay": 1},
        {"name": "admm"},
        {"name": "admm", "form": "consensus"},
        {"name": "hybrid"},
        {"name": "hybrid", "scheme": "b"},
        {"name": "downpour", "push": "layerwise", "backprop": {"groups": 2, "delay": 1}, "max_staleness": 1},
        {"name": "downpour", "push": "delta", "steps": 3},
        {"name": "mixed", "group": 2, "push": "delta", "steps": 3, "max_staleness": 0},
        {"name": "eamsgd", "tau": 3, "momentum": 0.9},
    ],
    ids=str,
)
def test_an_algorithm_has_the_numbers_of_the_cpu(algorithm: dict[str, Any], tmp_path: Path) -> None:
    """That of `spatial`, whose workers wait for each other in backward passes, is among the runs through Ray."""
    count = 1 if algorithm["name"] in ("downpour", "eamsgd") else 2
    fields = PLAIN | {"algorithm": algorithm, "optimizer": {"name": "sgd", "lr": 0.01}}
    on_gpu = trained(gpu_spec(count, **fields), tmp_path / "gpu")
    on_cpu = trained(gpu_spec(count, **fields, device="cpu"), tmp_path / "cpu")
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-3, atol=1e-4)


def test_a_run_that_is_taken_up_on_more_workers_has_the_bits_of_an_undisturbed_one(tmp_path: Path) -> None:
    half = LocalRun(gpu_spec(1, 3, epochs=1), tmp_path / "half").train()
    rest = gpu_spec(2, 3, checkpoint={"resume": str(half)})
    assert torch.equal(trained(rest, tmp_path / "rest"), trained(gpu_spec(1, 3), tmp_path / "whole"))


def test_a_checkpoint_goes_from_the_gpu_to_the_cpu_and_back(tmp_path: Path) -> None:
    half = LocalRun(gpu_spec(1, 2, epochs=1), tmp_path / "half").train()
    further = gpu_spec(1, 2, epochs=2, checkpoint={"resume": str(half)}, device="cpu")
    there = LocalRun(further, tmp_path / "there").train()
    back = gpu_spec(1, 2, epochs=3, checkpoint={"resume": str(there)}, algorithm=DOWNPOUR)
    assert bool(trained(back, tmp_path / "back").isfinite().all())
