"""Streaming `diloco`: plain `diloco` with one fragment, no delay and alpha 0, else algorithm 2 of the paper written
out."""

from itertools import islice
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from tests.equivalence.harness import Run, digits_spec, run_all_reduce
from tests.equivalence.local.local_sgd import Meet, all_works, averaged, in_parts, mean_into, same
from trainers.algorithms.diloco.config import ARRIVING, START, DilocoConfig
from trainers.algorithms.diloco.turns import Turns
from trainers.collectives.local import local_collectives
from trainers.errors import SpecRejected
from trainers.links.local import LocalWorld
from trainers.optim.buffers import Buffers
from trainers.spec import TrainSpec, field_errors
from trainers.spec.advice import advice
from trainers.spec.recipe import explain
from trainers.training.work import synchronous

NEAR = {"rtol": 2e-4, "atol": 2e-5}
ADAMW = {"name": "adamw", "lr": 0.003, "epsilon": 0.001, "weight_decay": 0.1}
STREAM = {"fragments": 3, "delay": 2, "alpha": 0.25}


def run_of(count: int = 2, every: int = 4, virtual: int = 3, **more: Any) -> Run:
    """more: fields of the algorithm by their names, others of the spec."""
    own = {name: more.pop(name) for name in ("fragments", "delay", "alpha", "outer") if name in more}
    algorithm = {"name": "diloco", "average_every": every} | own
    workers = {"count": count, "virtual": virtual}
    return Run(digits_spec({"algorithm": algorithm, "workers": workers, "optimizer": ADAMW} | more))


def stopped(run: Run, steps: int) -> Buffers:
    """What there is after so many steps."""
    size, world = run.spec.workers.count, LocalWorld(run.spec.seed)
    groups = local_collectives(world, size)

    def worker(rank: int) -> Buffers | None:
        algorithm = run.spec.algorithm.build(run.context(collectives=groups[rank]))
        feed = run.examples(rank, groups[rank])
        for work in islice(synchronous(*feed, run.ranks(rank, size), run.spec.epochs), steps):
            algorithm.step(work)
        found = algorithm.gather_state()
        algorithm.finish()
        return found

    found = world.run([lambda rank=rank: worker(rank) for rank in range(size)])[0]
    assert found is not None
    return found


# -- what it must equal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [{}, {"lr": 1.0, "momentum": 0.0}, {"lr": 0.5, "momentum": 0.0}], ids=str)
def test_one_fragment_without_delay_is_plain_diloco_bit_for_bit(
    outer: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To its end, and in the middle of a round with all that a checkpoint has. Uneven last steps, clipped gradients."""
    run = run_of(outer=outer, clip={"norm": 0.5}, schedule="cosine")
    plain = [run_all_reduce(run).buffers, stopped(run, run.order.steps + 6)]
    assert not run.spec.algorithm.streams
    monkeypatch.setattr(DilocoConfig, "streams", property(lambda _: True))
    found = [run_all_reduce(run).buffers, stopped(run, run.order.steps + 6)]
    assert all(same(one, other) for one, other in zip(plain, found, strict=True))


def written_out(run: Run, fragments: int, delay: int, alpha: float) -> tuple[Meet, nn.Module]:
    """Algorithm 2 after each step: torch's SGD for each fragment, whose gradient left `delay` steps before.
    Also theta, a model."""
    every, outer = run.spec.algorithm.average_every, run.spec.algorithm.outer
    start, works, turns = run.net(run.spec.seed), all_works(run), Turns(every, fragments, delay)
    named = dict(start.named_parameters())
    parts = [run.layout.names_in(part) for part in run.layout.fragments(fragments)]
    rules = [
        torch.optim.SGD([named[n] for n in names], lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov)
        for names in parts
    ]
    counts = [[0] * run.order.num_virtual for _ in parts]
    under_way = dict[int, tuple[int, list[Tensor]]]()
    step = 0

    def meet(models: list[nn.Module], _: list[torch.optim.Optimizer], __: list[float]) -> None:
        nonlocal step
        work, step = next(works), step + 1
        theirs = [dict(model.named_parameters()) for model in models]
        for p, names in enumerate(parts):
            for minibatch in work.minibatches:
                counts[p][minibatch.virtual_rank] += len(minibatch.batch) if minibatch.batch else 0
            turn = turns.first(p)
            if (step >= turn and (step - turn) % every == 0) or (work.ends_epoch and p not in under_way):
                shares, counts[p] = [n / sum(counts[p]) for n in counts[p]], [0] * len(models)
                changed = [[named[n].detach() - own[n].detach() for own in theirs] for n in names]
                for one in changed:
                    mean_into(one, shares)
                under_way[p] = step, [one[0] for one in changed]
        for p, (left, mean) in list(under_way.items()):
            if step - left == delay or work.ends_epoch:
                del under_way[p]
                for n, gradient in zip(parts[p], mean, strict=True):
                    named[n].grad = gradient
                rules[p].step()
                for own in theirs:
                    for n in parts[p]:
                        own[n].detach().mul_(alpha).add_(named[n].detach(), alpha=1 - alpha)
        if work.ends_epoch:
            step, counts[:] = 0, [[0] * len(models) for _ in parts]

    return meet, start


@pytest.mark.parametrize(
    ("every", "stream"),
    [(4, STREAM), (3, {"fragments": 1, "delay": 2, "alpha": 0.5}), (4, {"fragments": 4, "delay": 0, "alpha": 0.0})],
    ids=["all of it", "a delay", "fragments"],
)
def test_it_is_algorithm_2_written_out(every: int, stream: dict[str, Any]) -> None:
    """AdamW within; ten steps an epoch, of which the last is uneven and ends all rounds; batch norm, dropout."""
    run = run_of(every=every, schedule="cosine", **stream)
    found = run_all_reduce(run).params

    def expected(**other: Any) -> Tensor:
        meet, theta = written_out(run, **stream | other)
        averaged(run, 1, meet=meet)
        return run.layout.flatten({name: p.detach() for name, p in theta.named_parameters()})

    torch.testing.assert_close(found, expected(), **NEAR)
    for other in ({"alpha": 0.75}, {"delay": 1}, {"fragments": 2}):
        assert not torch.allclose(found, expected(**other), **NEAR)


def test_fragments_take_turns_and_each_leaves_once_in_a_round() -> None:
    turns = Turns(every=10, fragments=3, delay=4)
    left = {step: [p for p in range(3) if turns.leaves(p, step)] for step in range(1, 31)}
    assert {step: which for step, which in left.items() if which} == {
        3: [0], 6: [1], 10: [2], 13: [0], 16: [1], 20: [2], 23: [0], 26: [1], 30: [2],
    }  # fmt: skip
    for p in range(3):
        arrived = [step for step in range(1, 31) if turns.arrives(p, step)]
        assert arrived == [step + 4 for step in left if turns.leaves(p, step) and step + 4 <= 30]
        under_way = [step for step in range(1, 31) if turns.travels(p, step)]
        assert under_way == [s for s in range(1, 31) if any(turns.leaves(p, s - k) for k in range(4))]
    assert [turns.steps(1, step) for step in (1, 6, 7, 16, 17)] == [1, 6, 1, 10, 1]


# -- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [{}, {"lr": 1.0, "momentum": 0.0}], ids=str)
def test_the_same_bits_on_any_number_of_workers(outer: dict[str, float]) -> None:
    small = {"data": {"name": "digits", "limit": 103}, "clip": {"norm": 0.5}, "outer": outer, **STREAM}
    one, *others = (run_all_reduce(run_of(count, 3, 5, **small)).buffers for count in (1, 2, 3))
    assert all(same(one, other) for other in others)


def test_a_run_goes_on_bit_for_bit_with_sums_under_way() -> None:
    """Cut while one and two fragments travel, just before the last step of an epoch, and at its end."""
    run = run_of(every=4, fragments=3, delay=3, schedule="cosine", epochs=3, batch=8)
    steps = run.order.steps
    assert steps == 9
    state = stopped(run, steps + 2).state
    assert {ARRIVING, START, "x-0"} <= state.keys()
    moved = [bool(state[ARRIVING][part].any()) for part in run.layout.fragments(3)]
    assert moved == [True, True, False]
    expected = run_all_reduce(run).buffers
    assert same(in_parts(run, [steps + 2, 2 * steps - 1, 2 * steps], [2, 3, 1, 2]), expected)


def test_a_snapshot_changes_nothing() -> None:
    run = run_of(**STREAM)
    one, again = stopped(run, 7), stopped(run, 7)
    assert same(one, again)
    assert not torch.equal(one.params, one.state[START])


# -- its spec ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "more", "pointer", "message"),
    [
        ({"delay": 20}, {}, "/algorithm/delay", "give at most 19, or raise average_every"),
        ({"fragments": 21}, {}, "/algorithm/fragments", "a round has 20; give at most so many"),
        ({"alpha": 1.0}, {}, "/algorithm/alpha", "less than 1"),
        ({"fragments": 2}, {"compress": {"powersgd": 2}}, "/compress", "fragments: 1, delay: 0 and alpha: 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(algorithm: dict[str, Any], more: dict[str, Any], pointer: str, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        TrainSpec.model_validate({"algorithm": {"name": "diloco", "average_every": 20, **algorithm}} | more)
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == pointer
    assert message in found.message


def test_more_fragments_than_parameters_are_refused_with_the_model() -> None:
    config = DilocoConfig(fragments=5)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    config.check_model(nn.Sequential(model, nn.Linear(2, 1)), 2)
    with pytest.raises(SpecRejected, match="4 parameters that are trained, none of which is divided"):
        config.check_model(model, 2)


def test_alpha_is_a_half_with_a_delay_and_nothing_without() -> None:
    shares = [DilocoConfig(**config).own_share for config in ({}, {"fragments": 2}, {"delay": 1}, STREAM)]
    assert shares == [0, 0, 0.5, 0.25]


def test_explain_tells_the_turns() -> None:
    found = explain(run_of(**STREAM).spec, 203).quantities["fragments"]
    assert found.value == 3
    assert found.formula == (
        "one leaves every 4/3 steps, each every 4; its sum travels for 2 steps; "
        "then a worker's w_i <- 0.25 w_i + 0.75 w"
    )
    assert found.source == "Douillard et al. 2025 (algorithm 2)"
    assert "fragments" not in explain(run_of().spec, 203).quantities
    (said,) = [said for said in advice(run_of(delay=2, alpha=0.0).spec, 203) if said.startswith("algorithm.alpha")]
    assert "2 of 4 steps" in said
