"""Local SGD written out: what `parallel_sgd` and `diloco` must equal; and runs of it in parts."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import Run, WrittenLoss, clip_as_torch
from tests.equivalence.optimizers import torch_optimizer
from trainers.algorithms.base import Start, Work
from trainers.collectives.local import local_collectives
from trainers.links.local import LocalWorld
from trainers.models.dropout import replace_dropout
from trainers.optim.buffers import Buffers
from trainers.training.work import synchronous


def all_works(run: Run) -> Iterator[Work]:
    """The steps of the run as one worker that holds everything sees them."""
    dataset, order = run.examples(0, local_collectives(LocalWorld(), 1)[0])
    return synchronous(dataset, order, range(run.order.num_virtual), run.spec.epochs)


Meet = Callable[[list[nn.Module], list[torch.optim.Optimizer], list[float]], None]
"""What the workers do at the end of a round: their models, optimisers, and the shares that they count by."""


def averaged(
    run: Run,
    every: int | None,
    written: WrittenLoss | None = None,
    meet: Meet | None = None,
    before: Sequence[int] = (),
) -> Tensor:
    """Local SGD in plain PyTorch: a model and an optimiser for each virtual worker, which meet every H steps and at the
    end of each epoch, each counted by the examples that it has seen since.

    written: the loss; by default the cross entropy of images with labels. meet: by default they average parameters and
    momentum. before: the steps of a round in the first epochs, one number for each; by default as in the others.
    """
    meet = meet or average
    written = written or (lambda model, batch: (F.cross_entropy(model(batch.images), batch.labels), 1))
    spec, num_virtual = run.spec, run.order.num_virtual
    model = run.net(spec.seed)
    if run.layout.channels_last:
        model = model.to(memory_format=torch.channels_last)
    models = [copy.deepcopy(model) for _ in range(num_virtual)]
    draws = [replace_dropout(m, spec.seed) for m in models]
    optimizers = [torch_optimizer(spec, m) for m in models]
    schedule, seen, since, steps = spec.learning_rate(run.dataset.num_train), 0, [0] * num_virtual, 0
    for work in all_works(run):
        for minibatch in work.minibatches:
            rank, batch = minibatch.virtual_rank, minibatch.batch
            if batch is None:
                continue
            draws[rank].set(batch.epoch, batch.examples)
            optimizers[rank].zero_grad()
            loss, weight = written(models[rank], batch)
            (loss / weight).backward()
            if spec.clip is not None:
                clip_as_torch(spec.clip, models[rank])
            for group in optimizers[rank].param_groups:
                group["lr"] = schedule(seen)
            optimizers[rank].step()
            since[rank] += len(batch)
        seen, steps = seen + work.total_examples, steps + 1
        if work.ends_epoch or steps == (before[work.epoch] if work.epoch < len(before) else every):
            shares, since, steps = [n / sum(since) for n in since], [0] * num_virtual, 0
            meet(models, optimizers, shares)
    return run.layout.flatten({name: p.detach() for name, p in models[0].named_parameters()})


def average(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], shares: list[float]) -> None:
    """All go on from the mean of parameters and momentum."""
    for same in zip(*(m.parameters() for m in models), strict=True):
        mean_into([p.detach() for p in same], shares)
        states = [o.state[p] for o, p in zip(optimizers, same, strict=True)]
        if all("momentum_buffer" in state for state in states):
            mean_into([state["momentum_buffer"] for state in states], shares)


def mean_into(tensors: list[Tensor], shares: list[float]) -> None:
    mean = sum(share * tensor.double() for share, tensor in zip(shares, tensors, strict=True))
    for tensor in tensors:
        tensor.copy_(mean)


def same(one: Buffers | None, other: Buffers | None) -> bool:
    assert one is not None
    assert other is not None
    return (
        torch.equal(one.params, other.params)
        and one.state.keys() == other.state.keys()
        and all(torch.equal(vector, other.state[name]) for name, vector in one.state.items())
    )


def in_parts(run: Run, cuts: list[int], sizes: list[int]) -> Buffers:
    """Train some steps, then the rest on another number of workers, from the state that the first part left."""

    def train(start: Start, first: int, last: int | None, size: int) -> Start:
        world = LocalWorld()
        groups = local_collectives(world, size)
        epoch, step = divmod(first, run.order.steps)

        def worker(rank: int) -> tuple[Buffers | None, int, float]:
            algorithm = run.spec.algorithm.build(replace(run.context(collectives=groups[rank]), start=start))
            feed = run.examples(rank, groups[rank], rounds=epoch + (step > 0))
            works = synchronous(*feed, run.ranks(rank, size), run.spec.epochs, (epoch, step * run.order.num_virtual))
            reports = [(algorithm.step(work), work.total_examples) for work in islice(works, last and last - first)]
            again = algorithm.gather_state()  # an evaluation
            assert again is not None
            first_look = Buffers(again.params.clone(), {name: vector.clone() for name, vector in again.state.items()})
            buffers = algorithm.gather_state()
            assert rank or same(first_look, buffers)
            return buffers, sum(examples for _, examples in reports), reports[-1][0].learning_rate

        buffers, examples, lr = world.run([lambda rank=rank: worker(rank) for rank in range(size)])[0]
        assert buffers is not None
        return Start(buffers, start.examples + examples, lr)

    found, begin = run.start(), 0
    for cut, size in zip([*cuts, None], sizes, strict=True):
        found, begin = train(found, begin, cut, size), cut or 0
    return found.buffers
