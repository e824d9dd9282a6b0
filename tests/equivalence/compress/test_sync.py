"""Compressed gradients of `sync`: a serial program with a memory for each virtual worker, on any number of workers, and
through a resume."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.compress.written import WAYS, Memory
from tests.equivalence.harness import Outcome, Run, digits_spec, run_all_reduce, step_batches
from tests.equivalence.optimizers import torch_optimizer
from tests.local_runs import LocalRun
from trainers import explain
from trainers.models.dropout import replace_dropout
from trainers.optim.compress.build import compressor_of
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint


def run_of(compress: object, count: int, virtual: int = 3, **more: object) -> Run:
    fields = {
        "compress": compress,
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
    }
    return Run(digits_spec(fields | more))


def trained(run: Run) -> Outcome:
    return run_all_reduce(run)


def real(run: Run, outcome: Outcome) -> Tensor:
    return outcome.params[~run.layout.gaps]


def serial(run: Run, memories: list[Memory]) -> Tensor:
    """Plain PyTorch: each virtual worker sends a part of its share of the mean gradient; these are added from left to
    right, which is the tree over three."""
    model = run.model().to(memory_format=torch.channels_last if run.layout.channels_last else torch.contiguous_format)
    draws, optimizer = replace_dropout(model, run.spec.seed), torch_optimizer(run.spec, model)
    for step in step_batches(run):
        total, examples = torch.zeros(run.layout.numel), sum(map(len, step))
        for rank, memory in enumerate(memories):
            share = torch.zeros(run.layout.numel)
            if rank < len(step):
                draws.set(step[rank].epoch, step[rank].examples)
                optimizer.zero_grad()
                F.cross_entropy(model(step[rank].images), step[rank].labels, reduction="sum").backward()
                share = run.layout.flatten({n: p.grad for n, p in model.named_parameters()}) / examples
            total += memory.send(share)
        named = run.layout.named(total)
        for name, parameter in model.named_parameters():
            parameter.grad = named[name].clone(memory_format=torch.preserve_format)
        optimizer.step()
    return run.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


@pytest.mark.parametrize("way", WAYS)
def test_it_is_serial_with_a_memory_for_each_virtual_worker_on_any_number_of_workers(way: str) -> None:
    compress, written = WAYS[way]
    runs = [run_of(compress, count) for count in (1, 2, 3)]
    layout = runs[0].layout
    expected = serial(runs[0], [Memory(written, [slice(0, layout.numel)], layout.gaps) for _ in range(3)])
    for run in runs:
        assert torch.equal(real(run, trained(run)), expected[~layout.gaps])


@pytest.mark.parametrize("virtual", [4, 5])
def test_all_of_it_is_the_run_that_is_not_compressed(virtual: int) -> None:
    """To the bit where the number of examples of a step is a power of two, by which all is divided without rounding."""
    exact = {"data": {"name": "digits", "limit": 192}, "batch": 8} if virtual == 4 else {}
    found, plain = (trained(run_of(compress, 2, virtual, **exact)) for compress in ({"top_k": 1}, None))
    if virtual == 4:
        assert torch.equal(found.params, plain.params)
    assert torch.allclose(found.params, plain.params, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_what_was_sent_and_what_is_kept_is_what_there_was(way: str) -> None:
    """With plain SGD the parameters have moved by lr times what was sent."""
    compress, _ = WAYS[way]
    run = run_of(compress, 2, optimizer={"name": "sgd", "lr": 1e-3}, epochs=1, data={"name": "digits", "limit": 21})
    found = trained(run)
    assert found.buffers is not None
    kept = sum(found.buffers.state[f"kept-{rank}"] for rank in range(3))
    (step,) = step_batches(run)
    model = run.model().to(memory_format=torch.channels_last if run.layout.channels_last else torch.contiguous_format)
    draws = replace_dropout(model, run.spec.seed)
    for batch in step:
        draws.set(batch.epoch, batch.examples)
        F.cross_entropy(model(batch.images), batch.labels, reduction="sum").backward()
    gradient = run.layout.flatten({n: p.grad for n, p in model.named_parameters()}) / 21
    sent = (run.start().buffers.params - found.params) / 1e-3
    real = ~run.layout.gaps
    assert torch.allclose((sent + kept)[real], gradient[real], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [2, 3])
def test_nothing_travels_but_the_messages(way: str, count: int) -> None:
    run = run_of(WAYS[way][0], count, epochs=1)
    length = compressor_of(run.spec.compress).length(run.layout.numel)
    gathered = 4 * run.layout.numel * 3  # in the end worker 0 is told what the others have kept
    of_others = gathered * (3 - 3 // count) // 3
    assert trained(run).traffic.sent_bytes - of_others == (count - 1) * 3 * length * run.order.steps


CROSSED: Mapping[str, dict[str, object]] = {
    "bfloat16, clip, ema, frozen": {
        "precision": "bfloat16",
        "clip": {"norm": 0.5},
        "ema": {"decay": 0.9},
        "optimizer": {"name": "adamw", "lr": 0.01, "groups": [{"match": "fc1.bias", "frozen": True}]},
        "compress": "sign",
    },
    "lamb": {"optimizer": {"name": "lamb", "lr": 0.01}, "compress": {"top_k": 0.05}},
    "muon": {"optimizer": {"name": "muon", "lr": 0.01}, "compress": "int8"},
    "scaled": {
        "scaling": "linear",
        "batch": {"per_worker": 5, "base": 5},
        "warmup": {"name": "gradual", "epochs": 0.5},
        "compress": {"top_k": 0.05},
    },
}


@pytest.mark.parametrize("name", CROSSED)
def test_a_run_goes_on_on_other_workers_with_the_bits_of_one_that_was_not_stopped(name: str, tmp_path: Path) -> None:
    fields = {"data": {"name": "digits", "limit": 90}, "model": "mlp", "batch": 5, "epochs": 1}

    def run(folder: str, count: int, limit: int | None = None, **more: object) -> Checkpoint:
        workers = {"workers": {"count": count, "virtual": 3}}
        spec = TrainSpec.model_validate(fields | CROSSED[name] | workers | more)
        return read_checkpoint(LocalRun(spec, tmp_path / folder, limit=limit).train())

    whole, half = run("whole", 1), run("half", 2, limit=2)
    assert {f"kept-{rank}" for rank in range(3)} <= half.optimizer.keys()
    rest = run("rest", 3, checkpoint={"resume": str(tmp_path / "half" / "checkpoint")})
    for was, found in ((whole.model, rest.model), (whole.optimizer["kept-1"], rest.optimizer["kept-1"])):
        assert all(torch.equal(found[key], value) for key, value in was.items())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"precision": "float16"}, "take precision: bfloat16"),
        ({"elastic": {"mode": "scale_batch"}}, "or take fixed_batch"),
        ({"algorithm": {"name": "sync", "form": "parameter_server"}}, "take form: all_reduce"),
        ({"algorithm": {"name": "sync", "reduction": "fast"}}, "take reduction: canonical"),
        ({"algorithm": {"name": "sync", "noise_scale": True}}, "leave one of the two out"),
        ({"algorithm": "admm"}, "or sync"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainSpec.model_validate({"compress": "sign"} | fields)


def test_explain_tells_how_many_bytes_travel_and_warns_where_they_are_more() -> None:
    def told(compress: object, count: int) -> tuple[str, list[str]]:
        spec = TrainSpec.model_validate({"compress": compress, "workers": count})
        found = explain(spec, 1437)
        return found.quantities["compress"].formula, [text for text in found.warnings if "compress" in text]

    formula, warnings = told("sign", 4)
    assert "1.51 bytes" in formula
    assert "24 uncompressed" in formula
    assert not warnings
    assert told("int8", 16)[1]
