"""The turns of `hybrid` through the fully connected layers: who takes part, in which order, at what cost in bytes."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from tests.equivalence.harness import (
    Run,
    run_all_reduce,
)
from tests.equivalence.hybrid_net import SCHEMES, net, spec
from trainers.algorithms.hybrid.activation_exchange import plan_turns
from trainers.algorithms.hybrid.model_parallel import TurnInput
from trainers.collectives.local import local_collectives
from trainers.links.handle import Handle
from trainers.links.local import LocalWorld
from trainers.training.work import synchronous


@pytest.mark.parametrize("sizes", [(7, 7, 7, 7, 7), (7, 7, 3, 0, 0), (1, 0, 0, 0, 0), (2,)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_example_has_exactly_one_turn(scheme: str, sizes: tuple[int, ...]) -> None:
    turns = plan_turns(scheme, 2, sizes)
    taken = [(piece.rank, example) for turn in turns for piece in turn for example in range(piece.first, piece.stop)]
    assert sorted(taken) == [(rank, example) for rank, size in enumerate(sizes) for example in range(size)]
    assert all(sum(piece.size for piece in turn) for turn in turns)


def test_who_takes_part_in_a_turn() -> None:
    def shared(scheme: str, group: int = 2) -> list[list[tuple[int, int]]]:
        return [[(p.rank, p.size) for p in turn] for turn in plan_turns(scheme, group, (6, 6, 6, 6))]

    assert shared("a") == [[(0, 6), (1, 6), (2, 6), (3, 6)]]
    assert shared("b") == shared("bc", 1) == [[(0, 6)], [(1, 6)], [(2, 6)], [(3, 6)]]
    assert [[size for _, size in turn] for turn in shared("c")] == [[1, 1, 1, 1], [2] * 4, [1] * 4, [2] * 4]
    assert shared("bc", 4) == shared("c")
    assert shared("bc") == [[(0, 3), (1, 3)], [(0, 3), (1, 3)], [(2, 3), (3, 3)], [(2, 3), (3, 3)]]


def test_the_exchange_of_the_next_turn_is_begun_before_the_passes_of_this_one() -> None:
    run = Run(spec(3, 1, {"scheme": "b"}, epochs=1), net)
    (collectives,) = local_collectives(LocalWorld(0), 1)
    algorithm = run.spec.algorithm.build(run.context(collectives=collectives))
    calls: list[str] = []
    exchange = collectives.all_to_all

    def begun(send: list[Tensor], receive: list[Tensor]) -> Handle[None]:
        calls.append("exchange")
        return exchange(send, receive)

    def train(turn: TurnInput) -> tuple[Tensor, Tensor]:
        calls.append("pass")
        return torch.zeros_like(turn.activities), torch.zeros(())

    collectives.all_to_all, algorithm.model_parallel.train = begun, train
    algorithm.step(next(iter(synchronous(run.dataset, run.order, range(3), 1))))
    labels, first, second, third, reduced = ["exchange"] * 5
    assert calls[:11] == [
        labels, first, second, "pass", reduced, third, "pass", reduced, "pass", reduced, "exchange",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("scheme", ["a", "bc"])
@pytest.mark.parametrize(
    ("split", "widths", "between"),
    [("outputs", (32, 16, 16), 2 * (32 + 16)), ("pairs", (32, 16, 16), 4 * 16), ("pairs", (32, 16), 2 * 16)],
)
def test_the_bytes_of_a_step(scheme: str, count: int, split: str, widths: tuple[int, ...], between: int) -> None:
    """What all K workers together send, in floats, for kn examples, F = 64 activities and T weights in the backbone.

    Activities go from their owner to the K - 1 others, and their gradients come back: 2 (K - 1) F kn. Between the
    layers: (K - 1) h kn. The backbone: 2 (K - 1) T (paper 4, section 4.1). Labels and ids: 4 (K - 1) kn. Where the last
    layer is divided by outputs, maxima, sums and targets of each of the K workers: 3 K (K - 1) kn.
    """
    n, k = 8, count

    def even(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            backbone = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten())
            return nn.Sequential(backbone, *(nn.Linear(a, b) for a, b in itertools.pairwise((64, *widths))))

    fields = {"batch": n, "data": {"name": "digits", "limit": 4 * n}}
    one, two = (
        run_all_reduce(Run(spec(4, count, {"scheme": scheme, "split": split}, epochs=steps, **fields), even)).traffic
        for steps in (1, 2)
    )
    kn, backbone, divided = 4 * n, 64, len(widths) == 3  # the backbone's 40 weights, padded
    floats = (k - 1) * (2 * 64 * kn + between * kn + 2 * backbone + 4 * kn + (3 * k * kn if divided else 0))
    assert two.sent_bytes - one.sent_bytes == two.received_bytes - one.received_bytes == 4 * floats
