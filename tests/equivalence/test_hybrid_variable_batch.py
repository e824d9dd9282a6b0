"""`hybrid` with an update of the fully connected layers after every turn (paper 1, section 4.2)."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.equivalence.harness import (
    RECIPES,
    Run,
    run_all_reduce,
    serial,
    step_batches,
    written_loss,
)
from tests.equivalence.hybrid_net import distance, net, spec
from trainers.algorithms.base import Start, Work
from trainers.collectives.local import local_collectives
from trainers.collectives.reduction_tree import block
from trainers.data.batches import Batch
from trainers.links.local import LocalWorld
from trainers.models.dropout import replace_dropout
from trainers.optim.buffers import Buffers
from trainers.training.work import synchronous


def variable_batch(run: Run, steps: Iterator[list[Batch]], scheme: str) -> Tensor:
    """Plain PyTorch on one process: the fully connected layers are updated after every turn, the backbone after all."""
    model = run.net(run.spec.seed)
    draws, schedule = replace_dropout(model, run.spec.seed), run.spec.learning_rate(run.dataset.num_train)
    o = run.spec.optimizer
    options = {"lr": o.lr, "momentum": o.momentum, "weight_decay": o.weight_decay, "foreach": False}
    conv, norm = model.backbone[0], model.backbone[1]
    groups = [{"params": list(conv.parameters())}, {"params": list(norm.parameters()), "weight_decay": 0.0}]
    backbone, head = torch.optim.SGD(groups, **options), torch.optim.SGD(model.head.parameters(), **options)
    seen, num_virtual = 0, run.spec.workers.num_virtual
    for step in steps:
        examples, activities = sum(len(batch) for batch in step), []
        for batch in step:
            draws.set(batch.epoch, batch.examples)
            activities.append(model.backbone(batch.images))
        for t in range(len(step) if scheme == "b" else num_virtual):
            if scheme == "b":
                cuts = [(batch, slice(0, len(batch) if i == t else 0)) for i, batch in enumerate(step)]
            else:
                cuts = [(batch, slice(*block(len(batch), t, num_virtual))) for batch in step]
            labels = torch.cat([batch.labels[cut] for batch, cut in cuts])
            ids = torch.cat([torch.from_numpy(batch.examples)[cut] for batch, cut in cuts]).numpy()
            if len(ids) == 0:
                continue
            draws.set(step[0].epoch, ids)
            logits = model.head(torch.cat([a[cut] for a, (_, cut) in zip(activities, cuts, strict=True)]))
            written_loss(run.spec, logits, labels).backward(retain_graph=True)
            _step(head, schedule(seen) * len(labels) / examples, len(labels))
        _step(backbone, schedule(seen), examples)
        seen += examples
    return run.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


def _step(optimizer: torch.optim.Optimizer, lr: float, examples: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
        for parameter in group["params"]:
            parameter.grad /= examples
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("scheme", ["b", "c"])
def test_variable_batch_is_the_serial_program_written_out(scheme: str) -> None:
    fields = {"schedule": "krizhevsky", "optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.01}}
    for count in (1, 2, 3):
        run = Run(spec(3, count, {"scheme": scheme, "fc_batch": "per_turn"}, **fields | {"epochs": 2}), net)
        found = run_all_reduce(run).params
        assert distance(found, variable_batch(run, step_batches(run), scheme)) < 1e-5
    assert distance(found, serial(run, step_batches(run), "mean")) > 1e-4  # it is no synchronous SGD


def test_the_turns_of_a_step_move_the_weights_as_far_as_one_update() -> None:
    """To the first order in the learning rate, weight decay included: the choice that the config documents."""
    small = {"name": "sgd", "lr": 0.001, "weight_decay": 0.1}
    start = Run(spec(5, 1), net).start().buffers.params
    moved = {}
    for fc_batch in ("whole", "per_turn"):
        run = Run(spec(5, 1, {"scheme": "c", "fc_batch": fc_batch}, optimizer=small, epochs=1), net)
        moved[fc_batch] = run_all_reduce(run).params - start
    assert 0 < distance(moved["per_turn"], moved["whole"]) < 0.01


def test_variable_batch_taken_up_again_goes_on_as_if_undisturbed() -> None:
    """Equation 10 keeps the rate in its state: of a turn while it trains, of a step in what it hands on."""
    recipe = RECIPES["linear, gradual, equation 10"] | {"epochs": 2}
    run = Run(spec(3, 1, {"scheme": "b", "fc_batch": "per_turn"}, **recipe), net)
    works = list(synchronous(run.dataset, run.order, run.ranks(0, 1), run.spec.epochs))
    context, cut = run.context(), len(works) // 2

    def train(start: Start, works: list[Work]) -> Start:
        world = LocalWorld(0)
        (collectives,) = local_collectives(world, 1)

        def worker() -> Start:
            context.replica.point_to(run.layout.named(start.buffers.params.clone()))
            algorithm = run.spec.algorithm.build(replace(context, start=start, collectives=collectives))
            reports = [algorithm.step(work) for work in works]
            examples = start.examples + sum(report.examples for report in reports)
            return Start(algorithm.gather_state(), examples, reports[-1].learning_rate)

        (end,) = world.run([worker])
        return end

    buffers = {name: value.clone() for name, value in context.replica.buffers_of(0).items()}
    middle = train(context.start, works[:cut])
    found = train(middle, works[cut:])
    assert buffers
    assert distance(found.buffers.params, run_all_reduce(run).params) < 1e-6
    wrong = Buffers(middle.buffers.params, {name: state / 3 for name, state in middle.buffers.state.items()})
    assert distance(train(replace(middle, buffers=wrong), works[cut:]).buffers.params, found.buffers.params) > 1e-4
