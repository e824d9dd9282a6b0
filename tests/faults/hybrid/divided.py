"""What a run whose workers divide the model among them bears."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.faults.test_workers import ended_well, fault, has_trained, hurry, resized
from tests.runtime.runs import Watched


def divided_anew(
    watched: Watched, plan: Path, clean: dict[str, torch.Tensor], counts: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Kill one of the two workers of a run that is not to end meanwhile, and then scale it to each of these counts.
    Nothing but a step is lost: it comes to the numbers of a run that nobody disturbed, to float tolerance. Returns
    them."""
    has_trained(watched)
    os.kill(watched.of("actors")[0]["workers"][1]["pid"], signal.SIGKILL)
    fault(watched)
    resized(watched, 2)  # somebody took its place
    for workers in counts:
        watched.run.scale(workers)
        resized(watched, workers)
        has_trained(watched)
    hurry(plan)
    found = ended_well(watched, 40)
    assert not [line for line in watched.of("log") if "back to the last checkpoint" in line["message"]]
    for name, value in clean.items():
        torch.testing.assert_close(found[name], value, rtol=0.01, atol=0.001)
    return found
