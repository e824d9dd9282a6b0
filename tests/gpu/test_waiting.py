"""A step of one worker waits nowhere for its GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.runs import gpu_spec
from trainers.collectives.shared_memory import SharedMemoryCollectives
from trainers.training.rank_buffers import RankBuffers
from trainers.training.setup import set_up
from trainers.training.work import synchronous

GPU = torch.device("cuda", 0)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever waits for the GPU raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is new
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("model", ["tests.gpu.nets:small_net", "resnet18"])
@pytest.mark.parametrize("algorithm", [{"name": "sync"}, {"name": "sync", "reduction": "fast"}], ids=str)
def test_a_step_waits_nowhere(model: str, algorithm: dict[str, Any], tmp_path: Path) -> None:
    setup = set_up(gpu_spec(1, 2, model=model, algorithm=algorithm), None)
    start, _ = setup.begin()
    collectives = SharedMemoryCollectives(tmp_path, 0, 1, device=GPU)
    state = RankBuffers(setup.replica, 2, range(2))
    state.open(tmp_path / "buffers", collectives)
    state.begin(0)
    context = setup.context(start)
    trained = setup.spec.algorithm.build(type(context)(**vars(context) | {"collectives": collectives}))
    works = synchronous(setup.dataset, setup.order, range(2), 1)
    for clock in range(10):
        if clock < 3:  # libraries, memory and constants are there afterwards
            state.turn(clock)
            trained.step(next(works))
            state.complete(clock + 1)
            continue
        with no_waiting():
            state.turn(clock)
            trained.step(next(works))
            state.complete(clock + 1)
