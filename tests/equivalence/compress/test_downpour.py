"""Compressed pushes: the bits of a serial program with error feedback written out, and fewer bytes."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.compress.written import WAYS, Memory
from tests.equivalence.harness import Run, digits_spec, run_through_shards, step_batches
from tests.equivalence.optimizers import torch_optimizer
from trainers import explain
from trainers.elastic.lease_table import Audit
from trainers.models.dropout import replace_dropout
from trainers.optim.compress.build import compressor_of
from trainers.optim.gradient_norm import NormLimit
from trainers.parameter_server.groups import parts
from trainers.spec import TrainSpec

FREE = {"name": "downpour", "max_staleness": None}


def run_of(compress: object, workers: int = 1, algorithm: object = None, **more: object) -> Run:
    fields = {
        "compress": compress,
        "algorithm": {"name": "downpour", "max_staleness": 0} | (algorithm or {}),
        "workers": workers,
        "ps": 2,
        "optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.001},
    }
    return Run(digits_spec(fields | more))


def serial(run: Run, memory: Memory) -> Tensor:
    """Plain PyTorch: what is sent of the mean gradient of each minibatch, after it is clipped."""
    model = run.model()
    if run.layout.channels_last:
        model = model.to(memory_format=torch.channels_last)
    draws, optimizer = replace_dropout(model, run.spec.seed), torch_optimizer(run.spec, model)
    limit = NormLimit(run.optimizer)
    for (batch,) in step_batches(run):
        draws.set(batch.epoch, batch.examples)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.images), batch.labels).backward()
        gradient = run.layout.flatten({n: p.grad for n, p in model.named_parameters() if p.requires_grad})
        limit.shorten(gradient)  # the norm to the bit: another rounding of it may choose other elements
        named = run.layout.named(memory.send(gradient))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.grad = named[name].clone(memory_format=torch.preserve_format)
        for group in optimizer.param_groups:
            group["lr"] = run.spec.optimizer.lr * group.get("rate", 1.0)
        optimizer.step()
    return run.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


def real(run: Run, params: Tensor) -> Tensor:
    """Without the gaps between parameters, where a sign is of nothing."""
    return params[~run.layout.gaps]


@pytest.mark.parametrize("push", ["whole", "layerwise"])
@pytest.mark.parametrize("way", WAYS)
def test_one_worker_is_serial_with_error_feedback_bit_for_bit(way: str, push: str) -> None:
    compress, written = WAYS[way]
    run = run_of(compress, algorithm={"push": push, "bucket_bytes": 1})
    spans = sorted({span.start: span for cut in run.layout.shards for span in parts(cut, run.groups).values()}.items())
    memory = Memory(written, [span for _, span in spans], run.layout.gaps)
    assert torch.equal(real(run, run_through_shards(run).params), real(run, serial(run, memory)))
    plain = run_through_shards(run_of(None)).params
    assert not torch.equal(real(run, plain), real(run, serial(run, memory)))


@pytest.mark.parametrize("way", ["top_k 0.02", "sign"])
def test_clipped_and_frozen_and_with_rates_of_their_own_it_is_serial_too(way: str) -> None:
    compress, written = WAYS[way]
    groups = [{"match": "fc1.bias", "frozen": True}, {"match": "fc2.*", "lr": 0.01}]
    optimizer = {"name": "momentum", "lr": 0.02, "groups": groups}
    run = run_of(compress, clip={"norm": 0.5}, optimizer=optimizer)
    found, expected = run_through_shards(run).params, serial(run, Memory(written, run.layout.shards, run.layout.gaps))
    assert torch.equal(real(run, found), real(run, expected))


@pytest.mark.parametrize("way", WAYS)
def test_clipped_pushes_of_several_minibatches_are_dean_et_al_written_out(way: str) -> None:
    """num_push = num_fetch = 3: a local step by each minibatch's gradient, clipped; the sum of three is clipped too,
    then compressed, and what is sent of it makes the step of the shards."""
    compress, written = WAYS[way]

    def clipped(clip: object) -> Run:
        algorithm = {"num_push": 3, "num_fetch": 3, "max_staleness": 2}
        return run_of(compress, algorithm=algorithm, clip=clip, optimizer={"name": "sgd", "lr": 0.05})

    run = clipped({"norm": 0.5})
    memory, replica, server = (
        Memory(written, run.layout.shards, run.layout.gaps),
        run.replica(),
        run.start().buffers.params,
    )
    limit = NormLimit(run.optimizer)
    local, accrued, pending = server, torch.zeros_like(server), 0
    for number, (batch,) in enumerate(step_batches(run)):
        if number % 3 == 0:
            local = server
        gradient = torch.zeros_like(server)
        replica.gradient(local, batch, gradient, mean=True)
        accrued, pending = accrued + gradient, pending + 1
        limit.shorten(gradient)
        local = torch.add(local, gradient, alpha=-0.05)
        if pending == 3 or (number + 1) % run.order.minibatches == 0:
            limit.shorten(accrued)
            server = torch.add(server, memory.send(accrued), alpha=-0.05)
            accrued, pending = torch.zeros_like(server), 0
    assert min(limit.found) > 0.5  # every one of them was clipped
    found = run_through_shards(run)
    assert torch.equal(real(run, found.params), real(run, server))
    assert not torch.equal(real(run, run_through_shards(clipped(None)).params), real(run, server))


@pytest.mark.parametrize("options", [{}, {"num_push": 3, "num_fetch": 3, "max_staleness": 2}, {"push": "layerwise"}])
def test_all_of_it_is_the_run_that_is_not_compressed(options: dict[str, object]) -> None:
    found, plain = (run_through_shards(run_of(compress, algorithm=options)) for compress in ({"top_k": 1}, None))
    assert torch.equal(found.params, plain.params)


def test_asynchronous_back_propagation_without_a_delay_compresses_the_same_pushes() -> None:
    backprop = {"push": "layerwise", "backprop": {"groups": 3, "delay": 0}}
    one = {"push": "layerwise", "bucket_bytes": 1}
    runs = [run_of("int8", model="mlp", ps=1, algorithm=how) for how in (backprop, one)]
    for run in runs:
        run.net = None
        run.__post_init__()
    assert runs[0].groups
    assert run_through_shards(runs[0]).params.isfinite().all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"num_push": 3, "num_fetch": 2}, {"server_rule": "gap_aware"}])
def test_each_example_is_used_once_and_the_bytes_are_those_of_the_messages(
    way: str, options: dict[str, object]
) -> None:
    compress, _ = WAYS[way]
    run, plain = (run_of(how, 3, algorithm=FREE | options, epochs=1) for how in (compress, None))
    found, other = run_through_shards(run), run_through_shards(plain)
    assert found.leases.audit(0) == Audit(0, trained=203, lost=0, duplicated=0)
    assert found.params.isfinite().all()
    compressor = compressor_of(run.spec.compress)
    a_push = sum(compressor.length(cut.stop - cut.start) for cut in run.layout.shards)
    pushes = other.traffic.sent_bytes // (4 * run.layout.numel)
    assert found.traffic.sent_bytes == a_push * pushes
    assert a_push == pytest.approx(run.spec.compress.bytes_an_element * run.layout.numel, rel=0.01, abs=16)


def test_explain_tells_what_is_sent_of_how_many_bytes_and_whose_it_is() -> None:
    spec = TrainSpec.model_validate({"algorithm": "downpour", "compress": {"top_k": 0.01}})
    found = explain(spec, 1437).quantities["compress"]
    assert found.value == "top_k 0.01"
    assert "e <- p - what is sent" in found.formula
    assert "0.08 bytes an element of each push" in found.formula
    assert found.source == "Stich et al. 2018"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"algorithm": "hybrid"}, "take sync, or connect to send fewer"),
        ({"algorithm": "easgd"}, "take downpour, or diloco"),
        ({"algorithm": "admm"}, "take diloco with a small average_every, or sync"),
        ({"algorithm": {"name": "downpour", "push": "delta"}}, "take diloco, .* or push: whole"),
        ({"algorithm": {"name": "sync", "reduction": "fast"}}, "take reduction: canonical"),
        ({"algorithm": {"name": "sync", "form": "parameter_server"}}, "take form: all_reduce"),
        ({"wire": "bfloat16"}, "leave one of the two out"),
        ({"algorithm": {"name": "downpour", "server_rule": "delay_compensated"}}, "or take plain, staleness_aware"),
        ({"compress": "topk"}, "sign or int8"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainSpec.model_validate({"algorithm": "downpour", "compress": "sign"} | fields)
