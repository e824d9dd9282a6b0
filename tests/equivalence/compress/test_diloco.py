"""Compressed rounds of `diloco`: what is not sent is kept, on any number of workers and through a resume."""

import pytest
import torch

from tests.equivalence.compress.written import WAYS, Memory
from tests.equivalence.harness import Run, digits_spec, run_all_reduce, step_batches
from tests.equivalence.local.local_sgd import in_parts, same

NEAR = {"rtol": 2e-4, "atol": 2e-5}
MEAN = {"lr": 1.0, "momentum": 0.0}


def run_of(compress: object, count: int = 2, every: int = 4, outer: object = None, **more: object) -> Run:
    fields = {
        "compress": compress,
        "algorithm": {"name": "diloco", "average_every": every, "outer": outer or {}},
        "workers": {"count": count, "virtual": 3},
        "optimizer": {"name": "adamw", "lr": 0.003, "epsilon": 0.001, "weight_decay": 0.1},
    }
    return Run(digits_spec(fields | more))


@pytest.mark.parametrize("way", WAYS)
def test_a_round_moves_the_parameters_by_what_is_not_kept(way: str) -> None:
    runs = [run_of(compress, every=1000, outer=MEAN, epochs=1) for compress in (WAYS[way][0], None)]
    real = ~runs[0].layout.gaps
    found, plain = map(run_all_reduce, runs)
    assert found.buffers is not None
    kept = sum(found.buffers.state[f"kept-{rank}"] for rank in range(3))
    assert kept[real].any()
    torch.testing.assert_close((found.params - kept)[real], plain.params[real], **NEAR)


@pytest.mark.parametrize("way", WAYS)
def test_without_an_outer_step_it_is_local_sgd_with_error_feedback_written_out(way: str) -> None:
    """What `parallel_sgd` is told to take: Qsparse-local-SGD (Basu et al. 2019, algorithm 1). Each of R workers makes
    H steps of SGD from x to x_r; of (x - x_r) / R and what it has kept a part is sent; x moves by the sum of those."""
    compress, written = WAYS[way]
    data = {"name": "digits", "limit": 168}  # 8 whole steps an epoch
    run = run_of(compress, every=4, outer=MEAN, optimizer={"name": "sgd", "lr": 0.05}, data=data)
    replica, x = run.replica(), run.start().buffers.params
    memories = [Memory(written, [slice(0, len(x))], run.layout.gaps) for _ in range(3)]
    own = [x] * 3
    for number, minibatches in enumerate(step_batches(run), start=1):
        for rank, batch in enumerate(minibatches):
            gradient = torch.zeros_like(x)
            replica.gradient(own[rank], batch, gradient, mean=True, virtual_rank=rank)
            own[rank] = torch.sub(own[rank], gradient, alpha=0.05)
        if number % 4 == 0:
            first, second, third = (
                memory.send((x - x_r) * (7 / 21)) for memory, x_r in zip(memories, own, strict=True)
            )
            x = x - ((first + second) + third)  # in the canonical order: by another one, others are among the largest
            own = [x] * 3
    assert torch.equal(run_all_reduce(run).params, x)


def test_all_of_it_is_the_run_that_is_not_compressed() -> None:
    found, plain = (run_all_reduce(run_of(compress)).params for compress in ({"top_k": 1}, None))
    torch.testing.assert_close(found, plain, **NEAR)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bits_on_any_number_of_workers(way: str) -> None:
    small = {"data": {"name": "digits", "limit": 63}, "clip": {"norm": 0.5}, "precision": "bfloat16"}
    runs = [run_of(WAYS[way][0], count, 2, **small) for count in (1, 2, 3)]
    one, *others = (run_all_reduce(run).buffers for run in runs)
    assert all(same(one, other) for other in others)


@pytest.mark.parametrize("way", ["top_k 0.02", "sign"])
def test_a_run_goes_on_bit_for_bit_on_other_workers(way: str) -> None:
    """Cut within a round, just before the last step of an epoch, and at its end."""
    run = run_of(WAYS[way][0], schedule="cosine", epochs=3, batch=8)
    steps = run.order.steps
    expected = run_all_reduce(run).buffers
    assert same(in_parts(run, [steps + 2, 2 * steps - 1, 2 * steps], [2, 3, 1, 2]), expected)
