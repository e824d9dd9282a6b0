"""Compressed averages of `parallel_sgd`: local SGD with error feedback written out, on any number of workers, and
through a resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.equivalence.compress.written import WAYS, Memory
from tests.equivalence.harness import Run, digits_spec, run_all_reduce
from tests.equivalence.local.local_sgd import all_works, in_parts, same
from tests.local_runs import LocalRun
from trainers import explain
from trainers.collectives.local import local_collectives
from trainers.collectives.lossy.compressed import CompressedSum
from trainers.links.local import LocalWorld
from trainers.optim.compress.build import compressor_of
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint

NEAR = {"rtol": 2e-4, "atol": 2e-5}
SGD = {"name": "sgd", "lr": 0.05, "weight_decay": 0.001}
ADAMW = {"name": "adamw", "lr": 0.003, "epsilon": 0.001, "weight_decay": 0.1}
ALL = {name: way for name, (way, _) in WAYS.items()} | {"powersgd 2": {"powersgd": 2}}


def run_of(compress: object, count: int = 2, virtual: int = 3, options: Any = None, **more: Any) -> Run:
    fields = {
        "compress": compress,
        "algorithm": {"name": "parallel_sgd", "average_every": 4, "start": "sorted"} | (options or {}),
        "workers": {"count": count, "virtual": virtual},
        "optimizer": SGD,
    }
    return Run(digits_spec(fields | more))


# -- what it must equal -----------------------------------------------------------------------------------------------


def written_out(run: Run, every: int, memories: list[Memory]) -> Tensor:
    """SGD with momentum of three workers, which meet every H steps and at the end of each epoch: x moves by what is
    sent of their shares of its change, velocities become their mean; each counts by the examples that it has seen."""
    replica, x = run.replica(), run.start().buffers.params
    own, velocities, since, steps = [x] * 3, [torch.zeros_like(x)] * 3, [0] * 3, 0
    for work in all_works(run):
        for minibatch in work.minibatches:
            if minibatch.batch is None:
                continue
            rank, gradient = minibatch.virtual_rank, torch.zeros_like(x)
            replica.gradient(own[rank], minibatch.batch, gradient, mean=True, virtual_rank=rank)
            velocities[rank] = 0.9 * velocities[rank] + gradient
            own[rank] = torch.sub(own[rank], velocities[rank], alpha=0.05)
            since[rank] += len(minibatch.batch)
        steps += 1
        if work.ends_epoch or steps == every:
            shares = [n / sum(since) for n in since]
            first, second, third = (memory.send((x - own[k]) * shares[k]) for k, memory in enumerate(memories))
            x = x - (first + second + third)
            mean = sum((v * n for v, n in zip(velocities, since, strict=True)), torch.zeros_like(x)) / sum(since)
            own, velocities, since, steps = [x] * 3, [mean] * 3, [0] * 3, 0
    return x


@pytest.mark.parametrize("way", WAYS)
def test_it_is_local_sgd_with_error_feedback_written_out(way: str) -> None:
    """Batch norm, dropout, augmentation and uneven last steps."""
    compress, written = WAYS[way]
    run = run_of(compress, optimizer={"name": "momentum", "lr": 0.05})
    memories = [Memory(written, [slice(0, run.layout.numel)], run.layout.gaps) for _ in range(3)]
    found, real = run_all_reduce(run), ~run.layout.gaps
    torch.testing.assert_close(found.params[real], written_out(run, 4, memories)[real], **NEAR)
    assert found.buffers is not None
    for rank, memory in enumerate(memories):
        kept = torch.from_numpy(memory.e)
        assert kept.any()
        torch.testing.assert_close(found.buffers.state[f"kept-{rank}"][real], kept[real], **NEAR)


@pytest.mark.parametrize("every", [1, 4, "round"])
@pytest.mark.parametrize("optimizer", [SGD, SGD | {"name": "momentum"}, ADAMW], ids=lambda rule: rule["name"])
@pytest.mark.parametrize("compress", [{"top_k": 1}, {"powersgd": 1024}], ids=lambda compress: next(iter(compress)))
def test_all_of_it_is_the_run_that_is_not_compressed(compress: object, optimizer: object, every: object) -> None:
    found, plain, part = (
        run_all_reduce(run_of(how, options={"average_every": every}, optimizer=optimizer)).params
        for how in (compress, None, "sign")
    )
    torch.testing.assert_close(found, plain, **NEAR)
    assert not torch.allclose(part, plain, **NEAR)


@pytest.mark.parametrize("way", ALL)
def test_with_sgd_it_is_diloco_without_an_outer_step_bit_for_bit(way: str) -> None:
    """On the same examples. With an optimizer that has a state it is not: `diloco` leaves that with each worker."""
    for optimizer in (SGD, SGD | {"name": "momentum"}):
        run = run_of(ALL[way], options={"shuffle": "none", "start": "dealt"}, optimizer=optimizer)
        mean = {"name": "diloco", "average_every": 4, "outer": {"lr": 1.0, "momentum": 0.0}}
        other = run_of(ALL[way], algorithm=mean, optimizer=optimizer)
        other.order = run.examples(0, local_collectives(LocalWorld(), 1)[0])[1]
        equal = torch.equal(run_all_reduce(run).params, run_all_reduce(other).params)
        assert equal == (optimizer is SGD)


# -- nothing is lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["top_k 0.02", "top_k 0.3", "int8"])
def test_what_is_sent_and_what_is_kept_is_all_there_was_exactly(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each virtual worker in each round, in double precision; and x moves by the sum of what is sent."""
    rounds, of = [], CompressedSum.of

    def watched(self: CompressedSum, vectors: Tensor) -> Tensor:
        there = vectors + self.kept
        total = of(self, vectors)  # leaves in `vectors` what is sent of them
        assert torch.equal(vectors.double() + self.kept.double(), there.double())
        assert torch.equal(vectors[0] + vectors[1] + vectors[2], total)
        rounds.append(total.clone())
        return total

    monkeypatch.setattr(CompressedSum, "of", watched)
    run = run_of(WAYS[way][0], 1)
    x = run.start().buffers.params
    found = run_all_reduce(run).params
    assert len(rounds) == 2 * 3  # of 4, 4 and 2 steps
    for total in rounds:
        x = x - total
    assert torch.equal(found, x)


# -- the same bits ----------------------------------------------------------------------------------------------------

SMALL = {"data": {"name": "digits", "limit": 63}, "clip": {"norm": 0.5}}


@pytest.mark.parametrize("way", ALL)
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_the_same_bits_on_any_number_of_workers(way: str, optimizer: object) -> None:
    options = {"average_every": 2}
    runs = [run_of(ALL[way], count, options=options, optimizer=optimizer, **SMALL) for count in (1, 2, 3)]
    one, *others = (run_all_reduce(run).buffers for run in runs)
    assert all(same(one, other) for other in others)


@pytest.mark.parametrize("options", [{"group": 2, "within": 1}, {"local_after": 1, "growth": "linear"}])
def test_groups_and_post_local_sgd_have_the_same_bits_and_are_told_apart(options: dict[str, object]) -> None:
    """Averages within groups are whole: with all of it sent, the run is the one without compress."""
    fields = {"optimizer": SGD | {"name": "momentum"}, "data": {"name": "digits", "limit": 84}}
    runs = [run_of({"top_k": 0.02}, count, 4, options, **fields) for count in (1, 2, 3)]
    one, *others = (run_all_reduce(run).buffers for run in runs)
    assert all(same(one, other) for other in others)
    whole, plain = (run_all_reduce(run_of(how, 3, 4, options, **fields)).params for how in ({"top_k": 1}, None))
    torch.testing.assert_close(whole, plain, **NEAR)
    assert not torch.allclose(one.params, plain, **NEAR)


@pytest.mark.parametrize("way", ["top_k 0.02", "sign", "powersgd 2"])
@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_a_run_goes_on_bit_for_bit_on_other_workers(way: str, optimizer: object) -> None:
    """Cut within a round, just before the last step of an epoch, and at its end."""
    run = run_of(ALL[way], optimizer=optimizer, schedule="cosine", epochs=3, batch=8)
    steps = run.order.steps
    expected = run_all_reduce(run).buffers
    assert same(in_parts(run, [steps + 2, 2 * steps - 1, 2 * steps], [2, 3, 1, 2]), expected)


def test_a_run_goes_on_from_a_checkpoint_within_a_round(tmp_path: Path) -> None:
    fields = {"data": {"name": "digits", "limit": 90}, "model": "mlp", "batch": 5, "epochs": 1, "optimizer": ADAMW}
    fields |= {"algorithm": {"name": "parallel_sgd", "average_every": 4}, "compress": "sign", "ema": {"decay": 0.9}}

    def run(folder: str, count: int, limit: int | None = None, **more: object) -> Checkpoint:
        spec = TrainSpec.model_validate(fields | {"workers": {"count": count, "virtual": 3}} | more)
        return read_checkpoint(LocalRun(spec, tmp_path / folder, limit=limit).train())

    whole, half = run("whole", 1), run("half", 2, limit=2)
    assert {"round-start", "x-0", "kept-0", "kept-2"} <= half.optimizer.keys()
    rest = run("rest", 3, checkpoint={"resume": str(tmp_path / "half" / "checkpoint")})
    assert all(torch.equal(rest.model[key], value) for key, value in whole.model.items())


# -- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [2, 3])
def test_of_parameters_nothing_travels_but_messages_and_states_as_without_compress(way: str, count: int) -> None:
    """One more epoch adds three rounds. No example moves."""

    def a_round(compress: object, optimizer: object) -> float:
        one, two = (
            run_of(compress, count, options={"shuffle": "none"}, optimizer=optimizer, epochs=epochs)
            for epochs in (1, 2)
        )
        return (run_all_reduce(two).traffic.sent_bytes - run_all_reduce(one).traffic.sent_bytes) / 3

    run = run_of(WAYS[way][0])
    messages = (count - 1) * 3 * compressor_of(run.spec.compress).length(run.layout.numel)
    assert a_round(WAYS[way][0], SGD) == messages
    momentum = SGD | {"name": "momentum"}
    states = a_round(None, momentum) - a_round(None, SGD)
    # Two vectors in one are cut between workers at other places than one by itself.
    assert a_round(WAYS[way][0], momentum) == pytest.approx(messages + states, rel=0.02)


def test_explain_tells_what_travels_and_warns_where_most_of_it_is_whole() -> None:
    def told(optimizer: str, compress: object = "sign", count: int = 4) -> tuple[str, list[str]]:
        fields = {"algorithm": "parallel_sgd", "optimizer": optimizer, "compress": compress, "workers": count}
        found = explain(TrainSpec.model_validate(fields), 1437)
        return found.quantities["compress"].formula, [text for text in found.warnings if "compress" in text]

    formula, warnings = told("sgd")
    assert formula.endswith("1.51 bytes an element of a sum among 4 workers, 24 uncompressed")
    assert not warnings
    formula, (warning,) = told("momentum")
    assert formula.endswith("24 uncompressed; 1 vector of the optimizer is averaged too, uncompressed")
    assert "take optimizer: sgd, or diloco" in warning
    assert "3 vectors of the optimizer are averaged too" in told("adamw")[0]
    assert "vectors of the optimizer are averaged too" in told("adamw", {"powersgd": 2})[0]
    (warning,) = told("sgd", "int8", 16)[1]
    assert "take fewer workers" in warning
