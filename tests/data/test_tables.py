"""Tables: the same from a CSV file and from Parquet, categories by the training rows, bad rows by their places."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from trainers.data.batches import Dataset
from trainers.data.config import DataSpec
from trainers.data.datasets import open_dataset
from trainers.data.facts import DataFacts
from trainers.errors import DataNotFound, SpecRejected
from trainers.models.networks.tabular import Tabular
from trainers.spec import TrainSpec

ROWS = 40
COLUMNS = {
    "size": [0.5 * i for i in range(ROWS)],
    "colour": ["red" if i % 3 else "blue" for i in range(ROWS)],
    "code": [i % 4 for i in range(ROWS)],
    "y": [3 * i for i in range(ROWS)],
}


def spec(root: Path, **fields: object) -> DataSpec:
    name = "csv" if root.suffix == ".csv" else "parquet"
    return DataSpec.model_validate({"name": name, "root": str(root), "target": "y", "validation": 0.25} | fields)


@pytest.fixture(params=["csv", "parquet", "folder"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same rows in each form."""
    if request.param == "csv":
        lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in zip(*COLUMNS.values(), strict=True))]
        (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
        return tmp_path / "t.csv"
    whole = pa.table(COLUMNS | {"colour": pa.array(COLUMNS["colour"]).dictionary_encode()})
    if request.param == "parquet":
        pq.write_table(whole, tmp_path / "t.parquet", row_group_size=7)
        return tmp_path / "t.parquet"
    (tmp_path / "parts").mkdir()
    for i, start in enumerate((0, 13)):
        pq.write_table(whole.slice(start, 13 if start == 0 else None), tmp_path / "parts" / f"{i}.parquet")
    return tmp_path / "parts"


def rows(data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    (batch,) = data.batches([(0, np.arange(data.num_train))])
    return batch.data[0], batch.data[1]


@pytest.mark.parametrize("shared", [False, True])
def test_every_form_of_a_table_has_the_same_bits(table: Path, shared: bool, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    with open_dataset(spec(table, categories=["code"]), 0, tmp_path / "node" if shared else None) as data:
        assert data.facts == DataFacts((7,), outputs=1)
        assert (data.num_train, data.num_test) == (30, 10)
        x, y = rows(data)
    places = (y / 3).long()
    assert torch.equal(x[:, 1:3].argmax(1), torch.tensor([int(COLUMNS["colour"][i] == "red") for i in places]))
    assert torch.equal(x[:, 3:].argmax(1), places % 4)
    assert torch.equal(x[:, 1:].sum(1), torch.full((30,), 2.0))
    sizes = places.double() / 2
    standard = ((sizes - sizes.mean()) / sizes.std(correction=0)).float()
    torch.testing.assert_close(x[:, 0], standard)


def test_codes_stand_behind_the_numbers(table: Path) -> None:
    wanted = spec(table, encoding="codes", categories=["code"], columns=["colour", "code", "size"])
    with open_dataset(wanted, 0) as data:
        assert data.facts == DataFacts((3,), outputs=1, categories=(3, 5))
        x, y = rows(data)
    assert torch.equal(x[:, 2], (y / 3) % 4 + 1)
    assert set(x[:, 1].tolist()) == {1, 2}
    assert Tabular(2, (1, 3, 5))(x).shape == (30, 2)


def test_a_target_of_numbers_may_be_labels(table: Path) -> None:
    with open_dataset(spec(table, target="code", categories=["code"]), 0) as data:
        assert data.facts.classes == 4
        assert data.told == ("its 4 classes are 0, 1, 2, 3",)
        assert rows(data)[1].dtype == torch.int64


@pytest.mark.parametrize("encoding", ["one_hot", "codes"])
def test_a_category_that_no_training_row_has_is_told(encoding: str, tmp_path: Path) -> None:
    with open_dataset(spec(write(tmp_path, {"x": list("aaaaaaaa"), "y": range(8)})), 0) as data:
        (held_out,) = data.test_batches(8)
    x = ["a"] * 8
    x[int(held_out.data[1][0])] = "b"
    with open_dataset(spec(write(tmp_path, {"x": x, "y": range(8)}), encoding=encoding), 0) as data:
        assert data.told == ("x has 1 values that no training row has, such as b",)
        (held_out,) = data.test_batches(8)
        assert held_out.data[0][0].tolist() == [0.0]


def write(folder: Path, columns: dict[str, object]) -> Path:
    pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), folder / "w.parquet")
    return folder / "w.parquet"


@pytest.mark.parametrize(
    ("columns", "fields", "why"),
    [
        ({"x": [1.0, None, 3.0], "y": [1, 2, 3]}, {}, r"w\.parquet, row 1: x is None; fill it"),
        ({"x": [1.0, 2.0, float("nan")], "y": [1, 2, 3]}, {}, "row 2: x is nan"),
        ({"x": ["a", None, "b"], "y": [1, 2, 3]}, {}, "row 1: x is None"),
        ({"x": [1.0, 2.0], "y": [1, 2]}, {"columns": ["z"]}, r"data\.columns: there is no column 'z'; .* has x, y"),
        ({"x": [1.0, 2.0], "y": [1, 2]}, {"categories": ["z"]}, r"data\.categories: there is no column 'z'"),
        ({"x": [[1.0]] * 4, "y": [1, 2, 3, 4]}, {}, "x is list.*leave it out of data.columns"),
        ({"x": [1.0], "y": [1]}, {}, "has 1 rows"),
    ],
)
def test_bad_rows_name_the_place(columns: dict, fields: dict, why: str, tmp_path: Path) -> None:
    with pytest.raises(SpecRejected, match=why):
        open_dataset(spec(write(tmp_path, columns), **fields), 0)


def test_a_number_that_is_none_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n1,2\nnan,4\n3,3\n")
    with pytest.raises(SpecRejected, match="line 3: x is nan; fill it"):
        open_dataset(spec(tmp_path / "t.csv"), 0)


@pytest.mark.parametrize(
    ("encoding", "line"), [("latin-1", 2002), ("utf-16", 1)], ids=["far from the start", "from the start on"]
)
def test_a_table_that_is_not_in_utf_8_names_the_line(encoding: str, line: int, tmp_path: Path) -> None:
    rows = ["town,y", *(f"Kiel,{i}" for i in range(2000)), "München,2000", "Ulm,2001"]
    (tmp_path / "t.csv").write_text("\n".join(rows), encoding=encoding)
    with pytest.raises(SpecRejected, match=rf"t\.csv, line {line}, is not in UTF-8; save the file as UTF-8"):
        open_dataset(spec(tmp_path / "t.csv"), 0)


def test_two_columns_of_one_name_are_refused_where_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,x,z,y\n" + "1,2,3,4\n" * 8)
    with pytest.raises(SpecRejected, match=r"t\.csv has 2 columns named 'x'; rename all but one"):
        open_dataset(spec(tmp_path / "t.csv"), 0)
    open_dataset(spec(tmp_path / "t.csv", columns=["z"]), 0).close()
    (tmp_path / "one.csv").write_text("x,y\n" + "1,2\n" * 8)
    with pytest.raises(SpecRejected, match=r"t\.csv has 2 columns named 'x'"):
        open_dataset(spec(tmp_path / "one.csv", validation=None, test=str(tmp_path / "t.csv")), 0)


def test_files_of_a_folder_must_have_the_same_columns(table: Path) -> None:
    if table.is_dir():
        pq.write_table(pa.table({"y": [1]}), table / "z.parquet")
        with pytest.raises(SpecRejected, match=r"z\.parquet has no column 'size', and 0\.parquet has one"):
            open_dataset(spec(table), 0)
        (table / "z.parquet").write_text("no")
        with pytest.raises(SpecRejected, match=r"z\.parquet is no Parquet file"):
            open_dataset(spec(table), 0)
    with pytest.raises(DataNotFound, match=r"data\.root"):
        open_dataset(spec(table.parent / "none"), 0)


def test_the_encoding_follows_the_model() -> None:
    data = {"name": "parquet", "target": "y"}
    assert TrainSpec.model_validate({"model": "tabular", "data": data}).data.encoding == "codes"
    assert TrainSpec.model_validate({"model": "mlp", "data": data}).data.encoding is None
    for model, encoding in (("tabular", "one_hot"), ("mlp", "codes")):
        with pytest.raises(ValidationError, match="leave encoding out"):
            TrainSpec.model_validate({"model": model, "data": data | {"encoding": encoding}})
