"""Examples in the order of the data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils.data import DataLoader

from tests.equivalence.harness import DIGITS, Run, run_all_reduce, run_through_shards, serial
from tests.local_runs import LocalRun
from trainers import TrainSpec
from trainers.errors import SpecRejected

IN_ORDER = {"data": {**DIGITS["data"], "shuffle": False}}  # type: ignore[dict-item]
OWN_ORDER = {"name": "parallel_sgd", "shuffle": "none"}


def spec(count: int = 3, **fields: Any) -> TrainSpec:
    return TrainSpec.model_validate(DIGITS | {"workers": {"count": count, "virtual": 3}} | IN_ORDER | fields)


def test_sync_is_a_loop_over_a_loader_that_does_not_shuffle() -> None:
    runs = [Run(spec(count)) for count in (1, 2, 3)]
    first, *others = [run_all_reduce(run).params for run in runs]
    assert all(torch.equal(first, other) for other in others)
    dataset = runs[0].dataset
    loader = [np.array(part) for part in DataLoader(range(203), batch_size=21, collate_fn=list)]  # type: ignore[arg-type]
    steps = [(epoch, [step[i : i + 7] for i in range(0, len(step), 7)]) for epoch in range(2) for step in loader]
    batches = (list(dataset.batches([(epoch, part) for part in parts])) for epoch, parts in steps)
    torch.testing.assert_close(first, serial(runs[0], batches, "sum"), rtol=2e-4, atol=2e-6)


def test_a_worker_of_downpour_goes_through_the_data_in_their_order() -> None:
    run = Run(spec(1, algorithm="downpour", workers=1, ps=1, optimizer={"name": "sgd", "lr": 0.05}))
    parts = [(epoch, np.arange(203)[i : i + 7]) for epoch in range(2) for i in range(0, 203, 7)]
    batches = ([batch] for batch in run.dataset.batches(parts))
    torch.testing.assert_close(run_through_shards(run).params, serial(run, batches, "mean"), rtol=2e-4, atol=2e-6)


def test_it_is_kept_within_an_epoch(tmp_path: Path) -> None:
    half = LocalRun(spec(2), tmp_path / "half", limit=4).train()
    shuffled = spec(2, checkpoint={"resume": str(half)}, data=DIGITS["data"])
    with pytest.raises(SpecRejected, match=r"data\.shuffle: .* begun with False"):
        LocalRun(shuffled, tmp_path / "rest")


def test_what_moves_examples_at_random_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"set algorithm\.shuffle: none too"):
        spec(algorithm="parallel_sgd")
    assert spec(algorithm=OWN_ORDER).data.shuffle is False
