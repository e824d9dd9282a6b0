"""Local SGD written out: what `parallel_sgd` must equal."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import Run, WrittenLoss
from tests.equivalence.optimizers import torch_optimizer
from trainers.algorithms.base import Work
from trainers.collectives.local import local_collectives
from trainers.links.local import LocalWorld
from trainers.models.dropout import replace_dropout
from trainers.training.work import synchronous


def all_works(run: Run) -> Iterator[Work]:
    """The steps of the run as one worker that holds everything sees them."""
    dataset, order = run.examples(0, local_collectives(LocalWorld(), 1)[0])
    return synchronous(dataset, order, range(run.order.num_virtual), run.spec.epochs)


def averaged(run: Run, every: int | None, written: WrittenLoss | None = None) -> Tensor:
    """Local SGD in plain PyTorch: a model and an optimiser for each virtual worker, averaged every H steps and at the
    end of each epoch, each counted by the examples that it has seen since.

    written: the loss; by default the cross entropy of images with labels.
    """
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
            for group in optimizers[rank].param_groups:
                group["lr"] = schedule(seen)
            optimizers[rank].step()
            since[rank] += len(batch)
        seen, steps = seen + work.total_examples, steps + 1
        if work.ends_epoch or steps == every:
            shares, since, steps = [n / sum(since) for n in since], [0] * num_virtual, 0
            for same in zip(*(m.parameters() for m in models), strict=True):
                mean_into([p.detach() for p in same], shares)
                states = [o.state[p] for o, p in zip(optimizers, same, strict=True)]
                if all("momentum_buffer" in state for state in states):
                    mean_into([state["momentum_buffer"] for state in states], shares)
    return run.layout.flatten({name: p.detach() for name, p in models[0].named_parameters()})


def mean_into(tensors: list[Tensor], shares: list[float]) -> None:
    mean = sum(share * tensor.double() for share, tensor in zip(shares, tensors, strict=True))
    for tensor in tensors:
        tensor.copy_(mean)
