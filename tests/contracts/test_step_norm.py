"""The norm of a step's gradient, of which each worker has a share, over whatever carries their vectors."""

import math
from pathlib import Path

import pytest
import torch

from tests.contracts.groups import KINDS, Groups, rendezvous_for
from trainers.collectives.agreement.step_norm import StepNorm
from trainers.collectives.protocol import Collectives
from trainers.optim.clip import ClipSpec
from trainers.optim.gradient import TensorGradient
from trainers.optim.gradient_norm import NormLimit
from trainers.optim.optimizer import Optimizer
from trainers.optim.optimizers import SgdSpec


@pytest.mark.parametrize("kind", KINDS)
def test_the_norm_of_a_shared_gradient_has_the_same_bits_on_any_number_of_workers(kind: str, tmp_path: Path) -> None:
    """Of 7 blocks, so that shares differ; and 3 that only the first worker has."""
    vector = torch.randn(64 * 7, generator=torch.Generator().manual_seed(0))
    clip = Optimizer(SgdSpec().build(), clip=ClipSpec(norm=1.0))

    def norms(collectives: Collectives) -> tuple[float, ...]:
        step, mine = StepNorm(NormLimit(clip), collectives, len(vector)), collectives.span(len(vector))
        for scale in (1.0, 2.0):
            own = TensorGradient(scale * vector[mine])
            kept, factor = step.of(own, divisor=2.0, beside=0.0 if collectives.rank else 3.0)
            assert torch.equal(kept.piece(0, mine.stop - mine.start), own.vector)
            assert factor == pytest.approx(1 / step.limit.found[-1], rel=1e-5)
        return step.limit.taken()

    with rendezvous_for(kind) as rendezvous:
        groups = Groups(kind, tmp_path, rendezvous)
        found = {told for size in (1, 2, 3) for told in groups.run(size, norms)}
    (ours,) = found
    squares = float(vector.square().sum())
    assert ours == pytest.approx([math.sqrt(squares + 3) / 2, math.sqrt(4 * squares + 3) / 2])
