"""Updates that Triton has compiled, in one pass over the memory of a GPU."""

import numpy as np
import pytest
import torch

from tests.optim.one_pass import NEAR, RULES, updated
from trainers.optim.optimizer import Optimizer
from trainers.optim.update import SliceUpdate
from trainers.spec import AnyOptimizer, MomentumSpec

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
CASES = (
    {},
    {"in_place": True, "exempt": ()},
    {"divisors": (1.0, 3.0, 1.5), "scale": 0.37},
    {"decay": 0.0, "numel": 1023, "exempt": (slice(16, 48),)},
    {"numel": 1_000_003, "divisors": (96.0,)},
)
FOR_ADAM = (*CASES[:-1], CASES[-1] | {"decay": 0.0})
"""Of a million elements weight decay cancels some gradients but for their last bits, which Adam then makes a step."""


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("spec", RULES, ids=lambda spec: f"{spec.name}{getattr(spec, 'equation', '')}")
def test_it_has_the_bits_of_the_operations(spec: AnyOptimizer, case: dict[str, object]) -> None:
    found, wanted = (updated(spec, GPU, passes=passes, **case) for passes in (True, False))
    for mine, theirs in zip(found, wanted, strict=True):
        assert np.array_equal(mine.cpu().numpy(), theirs.cpu().numpy(), equal_nan=True)


@pytest.mark.parametrize("case", FOR_ADAM, ids=str)
@pytest.mark.parametrize("spec", NEAR, ids=str)
def test_adam_has_the_numbers_of_the_cpu_and_of_the_operations(spec: AnyOptimizer, case: dict[str, object]) -> None:
    fields = case | {"special": False, "lr": 0.01}
    found = updated(spec, GPU, passes=True, **fields)
    for wanted in (updated(spec, CPU, passes=True, **fields), updated(spec, GPU, passes=False, **fields)):
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=1e-5, atol=1e-6)


def test_the_tests_above_can_fail() -> None:
    both = (
        updated(RULES[1], GPU, passes=passes, scale=scale)[-1] for passes, scale in ((True, 1.0), (False, 1.0000002))
    )
    assert not np.array_equal(*(vector.cpu().numpy() for vector in both), equal_nan=True)


def test_a_slice_on_a_gpu_is_updated_so() -> None:
    assert SliceUpdate(Optimizer(MomentumSpec().build()), 64, GPU).in_one_pass
