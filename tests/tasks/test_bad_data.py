"""Examples that cannot be used: named, or skipped, with the same bits whoever skips them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from tests.data.ownsets import BAD
from tests.local_runs import LocalRun
from tests.runtime.control.fakes import FakeLog
from trainers.data.datasets import open_dataset
from trainers.data.skipped import SkippedExamples
from trainers.errors import RunFailed, TooManySkipped, UserCodeFailed
from trainers.spec import DataSpec, TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint

SETS = "tests.data.ownsets"


def spec(count: int = 1, kind: str = "raises", on_error: str = "skip", **changes: object) -> TrainSpec:
    data = {"name": f"{SETS}:bad", "root": kind, "loader_processes": 0, "on_error": on_error}
    fields = {"data": data, "model": "mlp", "batch": 3, "epochs": 2, "workers": {"count": count, "virtual": 3}}
    return TrainSpec.model_validate({**fields, **changes})


def trained(folder: Path, spec: TrainSpec, limit: int | None = None) -> Checkpoint:
    return read_checkpoint(LocalRun(spec, folder, limit=limit).train())


def assert_same(mine: Checkpoint, theirs: Checkpoint) -> None:
    for name, value in mine.model.items():
        assert torch.isfinite(value).all()
        assert torch.equal(value, theirs.model[name])


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("raises", r"example 4, raised OSError: row 4 of the file is torn"),
        ("nan", r"training example 7: \[0\] holds a number that is not finite"),
        ("ragged", r"training example 5 has other shapes than others, such as example 4: \[0\] \(2,\)"),
        ("label", r"training example 3: its label is 7, not in 0\.\.2"),
    ],
)
def test_a_bad_example_is_named_or_skipped(kind: str, why: str) -> None:
    plan = [(0, np.array([4, 3, 5, 7, 8]))]
    skips = spec(kind=kind).data
    with open_dataset(skips, 0) as dataset:
        (batch,) = dataset.batches(plan)
        assert {i for i, _ in batch.skipped} == BAD[kind] & set(range(9)) - {0, 6}
        assert sorted([*batch.examples.tolist(), *(i for i, _ in batch.skipped)]) == [3, 4, 5, 7, 8]
        assert [len(part) for part in batch.data] == [len(batch)] * 2
    if kind == "nan":
        with pytest.raises(UserCodeFailed, match="test example 0: "):  # found before training
            open_dataset(skips.model_copy(update={"on_error": "fail"}), 0)
        return
    with (
        open_dataset(skips.model_copy(update={"on_error": "fail"}), 0) as dataset,
        pytest.raises(UserCodeFailed, match=why),
    ):
        list(dataset.batches(plan))


def test_a_broken_photograph_is_skipped(tmp_path: Path) -> None:
    for folder in ("memory", "other"):
        (tmp_path / folder).mkdir()
    for half in ("train", "val"):
        for i in range(4):
            path = tmp_path / half / "ab"[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (i, 0, 0)).save(path)
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"no photograph")
    data = DataSpec(name="image_folder", root=str(tmp_path), loader_processes=0, on_error="skip", resize=8)
    with open_dataset(data, 0, tmp_path / "memory") as dataset:
        first, alone = dataset.batches([(0, np.array([1, 0])), (0, np.array([0]))])
        assert first.images.shape == (1, 3, 8, 8)
        assert "a/0.png) cannot be read" in first.skipped[0][1]
        assert (len(alone), alone.num_used) == (0, 1)
    with pytest.raises(RunFailed, match=r"a/0.png\) cannot be read"):
        open_dataset(data.model_copy(update={"on_error": "fail"}), 0, tmp_path / "other")


@pytest.mark.parametrize(
    "changes", [{}, {"algorithm": {"name": "sync", "form": "parameter_server"}, "ps": 1}], ids=["all-reduce", "shards"]
)
def test_skipping_has_the_same_bits_on_any_number_of_workers_and_resumed(changes: dict, tmp_path: Path) -> None:
    whole = trained(tmp_path / "1", spec(1, **changes))
    assert whole.position.examples == 2 * 41
    assert_same(trained(tmp_path / "3", spec(3, **changes)), whole)
    half = LocalRun(spec(2, **changes), tmp_path / "half", limit=7).train()
    assert_same(trained(tmp_path / "rest", spec(3, checkpoint={"resume": str(half)}, **changes)), whole)


def test_where_nothing_is_bad_skipping_changes_nothing(tmp_path: Path) -> None:
    """But that the workers tell each other what counted."""
    assert_same(
        trained(tmp_path / "skip", spec(2, "none")), trained(tmp_path / "fail", spec(2, "none", on_error="fail"))
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "sync", "reduction": "fast", "bucket_bytes": 200}},
        {"algorithm": "downpour", "ps": 1},
        {"algorithm": {"name": "mixed", "group": 3}, "ps": 1},
        {"algorithm": "admm"},
        {"algorithm": {"name": "diloco", "average_every": 2}},
        {"algorithm": {"name": "easgd", "tau": 2}, "ps": 1},
    ],
    ids=["sync", "bucketed", "downpour", "mixed", "admm", "diloco", "easgd"],
)
def test_a_step_that_loses_all_its_examples_divides_by_nothing(changes: dict, tmp_path: Path) -> None:
    """Of 41 examples two are good, and a step has three."""
    run = LocalRun(spec(3, "most", batch=1, workers={"count": 3, "virtual": 3}, **changes), tmp_path / "run")
    found = read_checkpoint(run.train())
    assert all(torch.isfinite(value).all() for value in found.model.values())
    assert found.position.examples >= 41


def test_each_is_told_once_and_too_many_fail_the_run() -> None:
    log = FakeLog()
    watch = SkippedExamples(0.05, 41, log.skipped)
    watch.add([(7, "x: example 7 is torn"), (3, "three")])
    watch.add([(7, "x: example 7 is torn")])
    assert watch.examples == (3, 7)
    assert [(line["level"], line["example"]) for line in log.of("log")] == [("warning", 7), ("warning", 3)]
    watch.add([(8, "eight")])
    with pytest.raises(TooManySkipped, match=r"4 training examples could not be read, and data\.max_skipped allows 3"):
        watch.add([(9, "nine")])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"data": {"name": "digits", "on_error": "skip"}}, "not for digits"),
        ({"algorithm": "hybrid", "workers": 2}, "hybrid with these options cannot"),
        ({"algorithm": "parallel_sgd"}, "parallel_sgd with these options cannot"),
    ],
)
def test_what_cannot_skip_says_so(fields: dict, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        spec(**fields)
