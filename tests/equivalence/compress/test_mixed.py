"""Compressed pushes of `mixed`: what a group has not sent its first worker keeps."""

import pytest
import torch
from torch import Tensor

from tests.equivalence.compress.written import WAYS, Compress, Memory, sends_watched
from tests.equivalence.harness import Run, digits_spec, run_through_shards, step_batches
from trainers import explain
from trainers.elastic.lease_table import Audit
from trainers.optim.compress.build import compressor_of
from trainers.optim.gradient_norm import NormLimit
from trainers.spec import TrainSpec


def run_of(compress: object, count: int, algorithm: object = None, **more: object) -> Run:
    fields = {
        "compress": compress,
        "algorithm": {"name": "mixed", "max_staleness": 0} | (algorithm or {}),
        "workers": count,
        "ps": 2,
        "optimizer": {"name": "sgd", "lr": 0.05},
    }
    return Run(digits_spec(fields | more))


def real(run: Run, params: Tensor) -> Tensor:
    """Without the gaps between parameters, where a sign is of nothing."""
    return params[~run.layout.gaps]


def written_out(run: Run, written: Compress, every: int) -> Tensor:
    """One group, which pushes and fetches after so many steps: its workers' gradients are added up and divided by their
    examples; between two fetches all step by that. What is accrued is clipped and compressed, and what is sent of it
    makes the step of the shards."""
    memory = Memory(written, run.layout.shards, run.layout.gaps)
    replica, server, limit = run.replica(), run.start().buffers.params, NormLimit(run.optimizer)
    local, accrued, steps = server, torch.zeros_like(server), 0
    for number, minibatches in enumerate(step_batches(run), start=1):
        gradients = [torch.zeros_like(server) for _ in range(run.spec.workers.count)]
        for rank, batch in enumerate(minibatches):
            replica.gradient(local, batch, gradients[rank], virtual_rank=rank)
        first, *others = gradients
        mean = sum(others, first) / sum(map(len, minibatches))
        accrued, steps = accrued + mean if steps else mean.clone(), steps + 1
        limit.shorten(mean)
        local = torch.add(local, mean, alpha=-0.05)
        if steps == every or number % run.order.steps == 0:
            limit.shorten(accrued)
            server = torch.add(server, memory.send(accrued), alpha=-0.05)
            steps = 0
        if number % every == 0:
            local = server
    return server


@pytest.mark.parametrize(("count", "every"), [(1, 1), (2, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("way", WAYS)
def test_one_group_is_serial_with_error_feedback_written_out_bit_for_bit(way: str, count: int, every: int) -> None:
    compress, written = WAYS[way]
    options = {"num_push": every, "num_fetch": every, "max_staleness": every - 1}
    run, plain = (run_of(how, count, options, clip={"norm": 0.5}) for how in (compress, None))
    expected = written_out(run, written, every)
    found = run_through_shards(run, lease_size=1000).params
    assert torch.equal(real(run, found), real(run, expected))
    assert not torch.equal(real(run, run_through_shards(plain, lease_size=1000).params), real(run, expected))


@pytest.mark.parametrize("way", WAYS)
def test_a_group_of_one_is_downpour_bit_for_bit(way: str) -> None:
    """With minibatches of a power of two, by which a sum is divided without rounding."""
    more = {"batch": 8, "data": {"name": "digits", "limit": 200, "random_crop": 1}}
    runs = [run_of(WAYS[way][0], 1, {"name": name, "max_staleness": 0}, **more) for name in ("mixed", "downpour")]
    mixed, downpour = (run_through_shards(run).params for run in runs)
    assert torch.equal(real(runs[0], mixed), real(runs[0], downpour))


@pytest.mark.parametrize("options", [{}, {"group": 2, "num_push": 3, "num_fetch": 2, "max_staleness": None}])
def test_all_of_it_is_the_run_that_is_not_compressed(options: dict[str, object]) -> None:
    found, plain = (run_through_shards(run_of(how, 4, options), lease_size=4) for how in ({"top_k": 1}, None))
    assert torch.equal(found.params, plain.params)


@pytest.mark.parametrize("way", ["top_k 0.02", "top_k 0.3", "int8"])
def test_what_is_sent_and_what_is_kept_is_all_there_was_exactly(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each push of each group, in double precision; the first worker of a group keeps, and nobody else."""
    sent = sends_watched(monkeypatch)
    run_through_shards(run_of(WAYS[way][0], 4, {"group": 2, "max_staleness": None}), lease_size=4)
    assert len({id(memory) for memory, _ in sent}) == 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("group", [2, 4])
def test_each_example_is_used_once_and_the_bytes_are_those_of_a_groups_messages(way: str, group: int) -> None:
    """28 minibatches an epoch, which every group divides: no step is short."""
    data = {"name": "digits", "limit": 196}
    run = run_of(WAYS[way][0], 4, {"group": group, "max_staleness": None}, data=data)
    found = run_through_shards(run, lease_size=4)
    assert found.leases is not None
    assert all(found.leases.audit(epoch) == Audit(epoch, trained=196, lost=0, duplicated=0) for epoch in range(2))
    compressor = compressor_of(run.spec.compress)
    a_push = sum(compressor.length(cut.stop - cut.start) for cut in run.layout.shards)
    assert found.traffic.sent_bytes == 2 * 28 // group * a_push


def test_explain_tells_what_is_sent_and_low_rank_is_refused() -> None:
    spec = TrainSpec.model_validate({"algorithm": "mixed", "compress": {"top_k": 0.01}, "workers": 4})
    assert "0.08 bytes an element of each push" in explain(spec, 1437).quantities["compress"].formula
    with pytest.raises(ValueError, match="take top_k, sign or int8, or sync or diloco"):
        TrainSpec.model_validate({"compress": {"powersgd": 4}, "algorithm": "mixed"})
