"""The kernels for GPUs, run on the CPU by Triton's interpreter, which rounds a product and a sum one after the other:
so with the numbers of the CPU's, not their bits. A process of its own, since Triton asks for the interpreter once."""

import os
from unittest import mock

import torch

from tests.optim.one_pass import NEAR, RULES, updated
from trainers.optim.rule import OnePass, Rule
from trainers.optim.update import SliceUpdate

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
compiled = SliceUpdate._compiled


def compiled_for_gpu(update: SliceUpdate, _: torch.device) -> dict[Rule, OnePass]:
    """What a slice on a GPU is updated by: never nothing, which would leave it to the CPU's own."""
    found = compiled(update, GPU)
    assert found
    return found


if __name__ == "__main__":
    assert os.environ["TRITON_INTERPRET"] == "1"
    for spec in (*RULES, *NEAR):
        for case in ({}, {"in_place": True, "exempt": ()}, {"decay": 0.0, "numel": 1023, "exempt": (slice(0, 16),)}):
            fields = {"special": False, "lr": 0.01, **case}
            wanted = updated(spec, CPU, passes=True, **fields)
            with mock.patch.object(SliceUpdate, "_compiled", compiled_for_gpu):
                found = updated(spec, CPU, passes=True, **fields)
            for mine, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
