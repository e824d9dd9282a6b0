"""Compressed sums of streaming `diloco`: algorithm 2 of its paper with error feedback written out, on any number of
workers and through a resume with sums under way."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.equivalence.compress.written import WAYS, Compress, Memory, sends_watched
from tests.equivalence.harness import Run, digits_spec, run_all_reduce, step_batches
from tests.equivalence.local.local_sgd import in_parts, same
from trainers.algorithms.diloco.config import ARRIVING, DilocoConfig
from trainers.algorithms.diloco.turns import Turns
from trainers.optim.compress.build import compressor_of
from trainers.spec import TrainSpec

NEAR = {"rtol": 2e-4, "atol": 2e-5}
STREAM = {"fragments": 3, "delay": 2, "alpha": 0.25}
SGD = {"name": "sgd", "lr": 0.05}
ADAMW = {"name": "adamw", "lr": 0.003, "epsilon": 0.001, "weight_decay": 0.1}
MEAN = {"lr": 1.0, "momentum": 0.0}


def run_of(compress: object, count: int = 2, every: int = 4, options: Any = None, **more: Any) -> Run:
    fields = {
        "compress": compress,
        "algorithm": {"name": "diloco", "average_every": every} | (STREAM if options is None else options),
        "workers": {"count": count, "virtual": 3},
        "optimizer": ADAMW,
    }
    return Run(digits_spec(fields | more))


# -- what it must equal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [{}, MEAN], ids=["nesterov", "mean"])
@pytest.mark.parametrize("way", WAYS)
def test_one_fragment_without_delay_is_compressed_diloco_bit_for_bit(
    way: str, outer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(WAYS[way][0], options={"outer": outer}, clip={"norm": 0.5})
    plain = run_all_reduce(run).buffers
    assert not run.spec.algorithm.streams
    monkeypatch.setattr(DilocoConfig, "streams", property(lambda _: True))
    assert same(run_all_reduce(run).buffers, plain)


def written_out(run: Run, written: Compress, fragments: int, delay: int, alpha: float) -> Tensor:
    """Of the shares of three workers in what they changed of a fragment since it left last, parts leave; `delay` steps
    later their sum makes a step of Nesterov momentum, which workers take with 1 - alpha."""
    replica, theta = run.replica(), run.start().buffers.params
    velocity, own, ranks = torch.zeros_like(theta), [theta] * 3, range(3)
    parts, turns = run.layout.fragments(fragments), Turns(4, fragments, delay)
    memories = [[Memory(written, [slice(0, p.stop - p.start)], run.layout.gaps[p]) for _ in ranks] for p in parts]
    counts, under_way = [[0] * 3 for _ in parts], dict[int, tuple[int, Tensor]]()
    for number, minibatches in enumerate(step_batches(run)):
        step = number % run.order.steps + 1
        ends = step == run.order.steps
        for k, batch in enumerate(minibatches):
            gradient = torch.zeros_like(theta)
            replica.gradient(own[k], batch, gradient, mean=True, virtual_rank=k)
            own[k] = torch.sub(own[k], gradient, alpha=0.05)
        for p, part in enumerate(parts):
            counts[p] = [n + (len(minibatches[k]) if k < len(minibatches) else 0) for k, n in enumerate(counts[p])]
            if turns.leaves(p, step) or (ends and p not in under_way):
                shares = [n / sum(counts[p]) for n in counts[p]]
                first, second, third = (memories[p][k].send((theta[part] - own[k][part]) * shares[k]) for k in ranks)
                counts[p], under_way[p] = [0] * 3, (step, first + second + third)
        for p, (left, d) in list(under_way.items()):
            if ends or step - left == delay:
                del under_way[p]
                part, theta, velocity = parts[p], theta.clone(), velocity.clone()
                velocity[part] = 0.9 * velocity[part] + d
                theta[part] -= 0.7 * (d + 0.9 * velocity[part])
                own = [x.clone() for x in own]
                for x in own:
                    x[part] = alpha * x[part] + (1 - alpha) * theta[part]
        if ends:
            counts = [[0] * 3 for _ in parts]
    return theta


@pytest.mark.parametrize("stream", [STREAM, {"fragments": 2, "delay": 0, "alpha": 0.0}], ids=["all of it", "fragments"])
@pytest.mark.parametrize("way", WAYS)
def test_it_is_algorithm_2_with_error_feedback_written_out(way: str, stream: dict[str, Any]) -> None:
    """Ten steps an epoch, of which the last is uneven and ends all rounds; batch norm, dropout, augmentation."""
    compress, written = WAYS[way]
    run = run_of(compress, options=stream, optimizer=SGD)
    real = ~run.layout.gaps
    found, plain = run_all_reduce(run).params, run_all_reduce(run_of(None, options=stream, optimizer=SGD)).params
    torch.testing.assert_close(found[real], written_out(run, written, **stream)[real], **NEAR)
    assert not torch.allclose(found, plain, **NEAR)


@pytest.mark.parametrize("outer", [{}, MEAN], ids=["nesterov", "mean"])
def test_all_of_it_is_the_run_that_is_not_compressed(outer: object) -> None:
    found, plain = (run_all_reduce(run_of(how, options=STREAM | {"outer": outer})) for how in ({"top_k": 1}, None))
    torch.testing.assert_close(found.params, plain.params, **NEAR)


# -- nothing is lost, the same bits, and bytes ------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["top_k 0.02", "top_k 0.3", "int8"])
def test_what_is_sent_and_what_is_kept_is_all_there_was_exactly(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each fragment of each virtual worker each time that it leaves, in double precision."""
    sent = sends_watched(monkeypatch)
    run = run_of(WAYS[way][0], 1)
    run_all_reduce(run)
    turns, steps = Turns(4, 3, 2), run.order.steps
    left = [sum(turns.leaves(p, step) for step in range(1, steps)) for p in range(3)]
    ends = [not turns.travels(p, steps - 1) for p in range(3)]  # who does not travel then leaves at the end
    starts = [part.start for _, part in sent]
    found = [starts.count(part.start) for part in run.layout.fragments(3)]
    assert found == [2 * 3 * (n + end) for n, end in zip(left, ends, strict=True)]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_bits_on_any_number_of_workers(way: str) -> None:
    small = {"data": {"name": "digits", "limit": 150}, "clip": {"norm": 0.5}, "precision": "bfloat16"}
    one, *others = (run_all_reduce(run_of(WAYS[way][0], count, **small)).buffers for count in (1, 2, 3))
    assert all(same(one, other) for other in others)


@pytest.mark.parametrize("way", ["top_k 0.02", "sign", "int8"])
def test_a_run_goes_on_bit_for_bit_on_other_workers_with_sums_under_way(way: str) -> None:
    """Cut while a fragment travels, just before the last step of an epoch, and at its end."""
    run = run_of(WAYS[way][0], schedule="cosine", epochs=3, batch=8)
    steps, turns = run.order.steps, Turns(4, 3, 2)
    cut = next(step for step in range(1, steps) if turns.travels(0, step))
    expected = run_all_reduce(run).buffers
    assert same(in_parts(run, [steps + cut, 2 * steps - 1, 2 * steps], [2, 3, 1, 2]), expected)
    assert expected is not None
    assert ARRIVING not in expected.state
    assert {"kept-0", "kept-1", "kept-2"} <= expected.state.keys()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [2, 3])
def test_nothing_travels_but_messages(way: str, count: int) -> None:
    """8 whole steps an epoch: one of two fragments leaves after 2, 6 and at the end, the other after 4 and 8. One more
    epoch adds their messages."""
    options = {"fragments": 2, "delay": 1}
    runs = [
        run_of(WAYS[way][0], count, options=options, epochs=epochs, data={"name": "digits", "limit": 168})
        for epochs in (1, 2)
    ]
    compressor = compressor_of(runs[0].spec.compress)
    first, second = (compressor.length(part.stop - part.start) for part in runs[0].layout.fragments(2))
    one, two = (run_all_reduce(run).traffic.sent_bytes for run in runs)
    assert two - one == (count - 1) * 3 * (3 * first + 2 * second)


def test_low_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="take top_k, sign or int8, or fragments: 1, delay: 0 and alpha: 0"):
        TrainSpec.model_validate({"compress": {"powersgd": 4}, "algorithm": {"name": "diloco", "fragments": 2}})
