"""Every task with the algorithms that take it, stopped within an epoch and gone on with by other workers."""

from pathlib import Path

import pytest
import torch

from tests.local_runs import LocalRun
from trainers.algorithms.diloco.config import ARRIVING
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint

TASKS = ("mixed images", "regression", "language model", "segmentation", "detection", "transformers")
SMALL = {"batch": 2, "epochs": 1, "seed": 3, "optimizer": {"name": "momentum", "lr": 0.02}}
EXAMPLES = 14


def spec(fields: dict, count: int, **changes: object) -> TrainSpec:
    whole = {**fields, **SMALL, "workers": {"count": count, "virtual": 3}, **changes}
    data = whole["data"]
    named = {"name": data} if isinstance(data, str) else dict(data)
    return TrainSpec.model_validate(whole | {"data": named | {"limit": EXAMPLES}})


DETERMINISTIC = [
    (name, algorithm)
    for name in TASKS
    for algorithm in ("sync", "parallel_sgd", "admm")
    if (name, algorithm) != ("detection", "parallel_sgd")  # refused: examples that are read one by one
] + [("detection", "diloco")]
STREAMING = {"name": "diloco", "average_every": 3, "fragments": 2, "delay": 2}
"""After the second of three steps the sum of the first fragment is under way."""


@pytest.mark.parametrize(("name", "algorithm"), [*DETERMINISTIC, ("regression", STREAMING)])
def test_the_bits_are_those_of_a_run_that_was_not_stopped(
    name: str, algorithm: object, specs: dict, tmp_path: Path
) -> None:
    whole = LocalRun(spec(specs[name], 1, algorithm=algorithm), tmp_path / "whole")
    last = read_checkpoint(whole.train())
    half = LocalRun(spec(specs[name], 2, algorithm=algorithm), tmp_path / "half", limit=2)
    begin = {"resume": str(half.train())}
    rest = LocalRun(spec(specs[name], 3, algorithm=algorithm, checkpoint=begin), tmp_path / "rest")
    found = read_checkpoint(rest.train())
    if algorithm == STREAMING:
        assert any(value.any() for value in read_checkpoint(Path(begin["resume"])).optimizer[ARRIVING].values())
    assert half.trained[0] > 0
    assert rest.trained[0] > 0
    assert half.trained + rest.trained == whole.trained
    assert all(torch.equal(found.model[name], value) for name, value in last.model.items())


@pytest.mark.parametrize("algorithm", ["downpour", {"name": "mixed", "group": 2}], ids=["downpour", "mixed"])
@pytest.mark.parametrize("name", TASKS)
def test_each_example_is_trained_once_before_or_after(
    name: str, algorithm: object, specs: dict, tmp_path: Path
) -> None:
    def run(folder: str, limit: int | None = None, **changes: object) -> LocalRun:
        fields = {"algorithm": algorithm, "workers": {"count": 2}, "ps": 2, **changes}
        return LocalRun(spec(specs[name], 2, **fields), tmp_path / folder, limit=limit)

    half = run("half", limit=2)
    resume = half.train()
    applied = read_checkpoint(resume).position.examples
    rest = run("rest", checkpoint={"resume": str(resume)})
    last = read_checkpoint(rest.train())
    assert 0 < applied < EXAMPLES
    assert rest.dispatcher.audit(0).trained == EXAMPLES
    assert last.position.examples == EXAMPLES
    assert all(value.isfinite().all() for value in last.model.values())
