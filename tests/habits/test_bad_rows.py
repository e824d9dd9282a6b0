"""Rows of tables and arrays that cannot be used: named, or left out, the same ones whoever opens the set."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.local_runs import LocalRun
from tests.runtime.control.fakes import FakeLog, prepared
from trainers.data.batches import Dataset
from trainers.data.config import DataSpec
from trainers.data.datasets import open_dataset
from trainers.errors import MillraceError, SpecRejected, TooManySkipped, UserCodeFailed
from trainers.runtime.control.run_progress import RunProgress
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint
from trainers.training.setup import set_up

datasets.disable_progress_bars()
SETS = "tests.data.usersets"


def csv(folder: Path, bad: dict[int, str] | None = None) -> dict[str, Any]:
    """40 rows of which some lines are others; a row is on the line of its number + 2."""
    lines = [(bad or {}).get(i, f"{i},{'red' if i % 3 else 'blue'},{2 * i}") for i in range(40)]
    (folder / "t.csv").write_text("\n".join(["x,colour,y", *lines]) + "\n")
    return {"name": "csv", "root": str(folder / "t.csv"), "target": "y", "validation": 0.25}


BAD = {3: "3,,6", 7: "7,red,nan", 20: "20,red", 21: "inf,blue,42"}
WHY = {
    5: "line 5: colour is empty",
    9: "line 9: y is nan",
    22: "line 22, has 2 fields and the first line 3",
    23: "line 23: x is inf",
}


def opened(fields: dict[str, Any], folder: Path | None = None, **more: Any) -> Dataset:
    skips = {"on_error": "skip", "max_skipped": 4} | more
    return open_dataset(DataSpec.model_validate(fields | {"loader_processes": 0} | skips), 0, folder)


def rows(data: Dataset) -> torch.Tensor:
    (batch,) = data.batches([(0, np.arange(data.num_train))])
    return torch.cat([part.flatten() for part in batch.data])


def test_bad_lines_of_a_csv_file_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    fields = csv(tmp_path, BAD)
    with opened(fields) as own, opened(fields, tmp_path / "node") as first, opened(fields, tmp_path / "node") as second:
        for data in (own, first, second):  # the last one maps what the one before has read
            assert (data.num_train, data.num_test) == (27, 9)
            assert {line: WHY[line] in why for line, why in data.skipped} == dict.fromkeys(WHY, True)
            assert torch.equal(rows(data), rows(own))
    good = "\n".join(line for line in (tmp_path / "t.csv").read_text().splitlines() if line not in BAD.values())
    (tmp_path / "t.csv").write_text(good + "\n")
    with opened(fields, on_error="fail") as alone, opened(fields) as data:
        assert torch.equal(rows(data), rows(alone))
        assert data.skipped == ()


def test_bad_rows_of_parquet_and_of_datasets_are_left_out(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {"x": [1.0, None, 3.0, 4.0, 5.0, 6.0], "y": [1.0, 2.0, 3.0, float("nan"), 5.0, 6.0]}
    for i, part in enumerate((slice(0, 2), slice(2, 6))):
        (tmp_path / "p").mkdir(exist_ok=True)
        pq.write_table(pa.table({name: values[part] for name, values in columns.items()}), tmp_path / f"p/{i}.parquet")
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "h")
    for name, why in (("p", ("0.parquet, row 1: x is None", "1.parquet, row 1: y is nan")), ("h", ("row 1", "row 3"))):
        fields = {"name": "parquet" if name == "p" else "hf", "root": str(tmp_path / name), "target": "y"}
        with opened(fields, validation=0.25) as data:
            assert (data.num_train, data.num_test) == (3, 1)
            assert [row for row, _ in data.skipped] == [1, 3]
            assert all(part in told for part, (_, told) in zip(why, data.skipped, strict=True))


@pytest.mark.parametrize("most", [3, 0.05])
def test_more_than_may_be_end_the_run(most: float, tmp_path: Path) -> None:
    with pytest.raises(TooManySkipped, match=r"data\.max_skipped allows"):
        opened(csv(tmp_path, BAD), max_skipped=most)
    with pytest.raises(TooManySkipped, match=r"2 training examples .* allows 1"):
        opened(csv(tmp_path, {3: BAD[3], 20: BAD[20]}), max_skipped=1)


def test_a_label_that_no_training_row_has(tmp_path: Path) -> None:
    fields = csv(tmp_path) | {"target": "colour"}
    (tmp_path / "v.csv").write_text("x,colour,y\n1,red,2\n,red,4\n3,green,6\n4,blue,8\n")
    more = {"validation": str(tmp_path / "v.csv")}
    (tmp_path / "w.csv").write_text("x,colour,y\n1,red,2\n2,red,4\n3,green,6\n")
    with pytest.raises(SpecRejected, match=r"w\.csv, line 4: no training row has the label green"):
        opened(fields, on_error="fail", validation=str(tmp_path / "w.csv"))
    with opened(fields | more) as data:
        assert (data.num_train, data.num_test, data.facts.classes, data.skipped) == (40, 2, 2, ())
        assert any("v.csv, line 3: x is empty, so no evaluation has it" in said for said in data.told)
        assert any("v.csv, line 4: no training row has the label green, so no" in said for said in data.told)


@pytest.mark.parametrize("shared", [False, True])
def test_bad_rows_of_arrays_are_left_out(shared: bool, tmp_path: Path) -> None:
    name = f"{SETS}:bad_arrays"
    with opened({"name": name, "root": "images"}, tmp_path if shared else None) as data:
        assert (data.num_train, data.num_test) == (11, 7)
        assert [(row, "has the label -1" in why) for row, why in data.skipped] == [(4, True)]
        assert "test image 0 has the label 7" in data.told[0]
    with opened({"name": name, "root": "numbers"}, tmp_path if shared else None) as data:
        assert (data.num_train, data.num_validation, data.num_test) == (6, 2, 1)
        assert [row for row, _ in data.skipped] == [3, 5]
        assert "the label of test row 0 is 9" in data.told[0]
    with pytest.raises(UserCodeFailed, match="column 0, training row 3, holds"):
        opened({"name": name, "root": "numbers"}, on_error="fail")
    with pytest.raises(MillraceError, match="labels run from -1 to 3"):
        opened({"name": name, "root": "images"}, on_error="fail")


ALGORITHMS: list[dict[str, Any]] = [
    {"algorithm": "sync"},
    {"algorithm": {"name": "parallel_sgd", "average_every": 2}},
]


@pytest.mark.parametrize("fields", ALGORITHMS, ids=["sync", "parallel_sgd"])
def test_what_is_left_is_trained_once_an_epoch_with_the_same_bits(fields: dict[str, Any], tmp_path: Path) -> None:
    data = csv(tmp_path, BAD) | {"on_error": "skip", "max_skipped": 4}

    def run(count: int) -> LocalRun:
        workers = {"count": count, "virtual": 3}
        asked = fields | {"task": "regression", "data": data, "batch": 4, "epochs": 2, "workers": workers}
        return LocalRun(TrainSpec.model_validate(asked), tmp_path / f"run-{count}")

    found = {count: read_checkpoint(run(count).train()) for count in (1, 2, 3)}
    assert found[1].position.examples == 2 * 27
    for count in (2, 3):
        assert all(torch.equal(value, found[count].model[name]) for name, value in found[1].model.items())


def test_the_log_and_the_result_tell_each_once(tmp_path: Path) -> None:
    data = csv(tmp_path, BAD) | {"on_error": "skip", "max_skipped": 4}
    spec = TrainSpec.model_validate({"task": "regression", "data": data, "batch": 4})
    layout = set_up(spec, None).run_layout()
    assert [line for line, _ in layout.skipped] == sorted(WHY)
    log = FakeLog()
    progress = RunProgress(spec, prepared(0), [1], log)
    progress.skipped.note(layout.skipped)
    progress.skipped.note(layout.skipped)
    assert progress.skipped.examples == tuple(sorted(WHY))
    assert [line["example"] for line in log.of("log")] == sorted(WHY)
