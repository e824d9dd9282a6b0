"""`compress: {powersgd: RANK}`: the algorithm of its source written out, with a memory for each virtual worker."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import Run, digits_spec, run_all_reduce, step_batches
from tests.equivalence.local.local_sgd import in_parts, same
from tests.equivalence.optimizers import torch_optimizer
from tests.local_runs import LocalRun
from trainers import explain
from trainers.models.dropout import replace_dropout
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint

NEAR = {"rtol": 1e-3, "atol": 2e-4}


def run_of(rank: int | None, count: int = 2, **more: object) -> Run:
    fields = {
        "compress": None if rank is None else {"powersgd": rank},
        "workers": {"count": count, "virtual": 3},
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
    }
    return Run(digits_spec(fields | more))


def serial(run: Run, rank: int) -> Tensor:
    """Algorithms 1 and 2 of Vogels et al. 2019 in plain PyTorch: Gram-Schmidt and a warm start."""
    model = run.model()
    draws, optimizer = replace_dropout(model, run.spec.seed), torch_optimizer(run.spec, model)
    names = [name for name, _ in model.named_parameters()]
    shapes = {n: (p.shape[0], p[0].numel()) for n, p in model.named_parameters() if p.dim() > 1}
    small = {name: (n, m) for name, (n, m) in shapes.items() if rank * (n + m) < n * m}
    in_order = sorted(small, key=lambda name: run.layout.offsets[run.layout.names.index(name)])
    drawn = torch.randn(
        sum(small[name][1] * rank for name in in_order), generator=torch.Generator().manual_seed(run.spec.seed)
    )
    parts = torch.split(drawn, [small[name][1] * rank for name in in_order])
    q = {name: part.view(-1, rank) for name, part in zip(in_order, parts, strict=True)}
    kept = [{name: torch.zeros(small[name]) for name in small} for _ in range(3)]
    for step in step_batches(run):
        shares: list[dict[str, Tensor]] = []
        for batch in step:
            draws.set(batch.epoch, batch.examples)
            optimizer.zero_grad()
            F.cross_entropy(model(batch.images), batch.labels, reduction="sum").backward()
            shares.append({n: p.grad / sum(map(len, step)) for n, p in model.named_parameters()})
        shares += [{n: torch.zeros_like(p) for n, p in model.named_parameters()}] * (3 - len(shares))
        sent = {name: sum(share[name] for share in shares) for name in names}
        for name, shape in small.items():
            wanted = [share[name].reshape(shape) + mine[name] for share, mine in zip(shares, kept, strict=True)]
            base = gram_schmidt(sum(m @ q[name] for m in wanted))
            right = [m.T @ base for m in wanted]
            q[name] = sum(right)
            sent[name] = (base @ q[name].T).view_as(sent[name])
            for mine, m, r in zip(kept, wanted, right, strict=True):
                mine[name] = m - base @ r.T
        for name, parameter in model.named_parameters():
            parameter.grad = sent[name]
        optimizer.step()
    return run.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


def gram_schmidt(columns: Tensor) -> Tensor:
    found: list[Tensor] = []
    for column in columns.T:
        rest = column - sum((other @ column) * other for other in found)
        found.append(rest / rest.norm())
    return torch.stack(found, 1)


@pytest.mark.parametrize("rank", [1, 4])
def test_the_same_bits_on_any_number_of_workers(rank: int) -> None:
    runs = [run_of(rank, count) for count in (1, 2, 3)]
    one, *others = (run_all_reduce(run).buffers for run in runs)
    assert all(same(one, other) for other in others)


@pytest.mark.parametrize("rank", [1, 4])
def test_it_is_algorithm_2_written_out(rank: int) -> None:
    run = run_of(rank, data={"name": "digits", "limit": 105}, epochs=1)
    torch.testing.assert_close(run_all_reduce(run).params, serial(run, rank), **NEAR)


def test_a_matrix_that_is_not_smaller_travels_as_it_is() -> None:
    """With the largest rank nothing is compressed: the run without it, to tolerance."""
    found, plain = (run_all_reduce(run_of(rank)).params for rank in (64, None))
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)


def test_what_was_sent_and_what_is_kept_is_what_there_was() -> None:
    """With plain SGD the parameters have moved by lr times what was sent."""
    one = {"optimizer": {"name": "sgd", "lr": 1e-3}, "epochs": 1, "data": {"name": "digits", "limit": 21}}
    runs = [run_of(rank, **one) for rank in (2, None)]
    found, plain = map(run_all_reduce, runs)
    kept = sum(found.buffers.state[f"kept-{rank}"] for rank in range(3))
    assert kept.any()
    torch.testing.assert_close(found.params - 1e-3 * kept, plain.params, rtol=1e-5, atol=1e-6)


def test_fewer_bytes_travel() -> None:
    run, plain = (run_of(rank, 3, epochs=1) for rank in (2, None))
    found, without = (run_all_reduce(each).traffic.sent_bytes for each in (run, plain))
    told = 4 * run.layout.numel * 2  # in the end worker 0 is told what the two others have kept
    assert found - told < 0.35 * without


@pytest.mark.parametrize("algorithm", ["sync", {"name": "diloco", "average_every": 3}], ids=["sync", "diloco"])
def test_a_run_goes_on_bit_for_bit_on_other_workers(algorithm: object) -> None:
    run = run_of(2, algorithm=algorithm, clip={"norm": 0.5}, schedule="cosine")
    steps = run.order.steps
    assert same(in_parts(run, [2, steps - 1, steps], [2, 3, 1, 2]), run_all_reduce(run).buffers)


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    fields = {"data": {"name": "digits", "limit": 90}, "model": "mlp", "batch": 5, "epochs": 1}
    fields |= {"compress": {"powersgd": 2}, "optimizer": {"name": "muon", "lr": 0.01}, "precision": "bfloat16"}

    def run(folder: str, count: int, limit: int | None = None, **more: object) -> Checkpoint:
        spec = TrainSpec.model_validate(fields | {"workers": {"count": count, "virtual": 3}} | more)
        return read_checkpoint(LocalRun(spec, tmp_path / folder, limit=limit).train())

    whole, half = run("whole", 1), run("half", 2, limit=2)
    assert {"powersgd", "kept-0", "kept-2"} <= half.optimizer.keys()
    rest = run("rest", 3, checkpoint={"resume": str(tmp_path / "half" / "checkpoint")})
    assert all(torch.equal(rest.model[key], value) for key, value in whole.model.items())


def test_explain_tells_the_rank_and_shards_are_refused() -> None:
    found = explain(TrainSpec.model_validate({"compress": {"powersgd": 4}}), 1437).quantities["compress"]
    assert (found.value, found.source) == ("powersgd 4", "Vogels et al. 2019")
    assert "r (n + m) numbers" in found.formula
    with pytest.raises(ValueError, match="take top_k, sign or int8, or sync or diloco"):
        TrainSpec.model_validate({"compress": {"powersgd": 4}, "algorithm": "downpour"})
