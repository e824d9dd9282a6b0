"""A Ray Dataset's rows become examples by what their columns hold."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.arrow_rows import ArrowRows
from trainers.data.config import DataSpec
from trainers.data.datasets import open_dataset, open_partitioned
from trainers.data.facts import DataFacts
from trainers.data.records.ray_rows import OpenRows
from trainers.errors import DataLost, MillraceError, SpecRejected


def spec(**fields: object) -> DataSpec:
    return DataSpec.model_validate({"name": "ray:sets:rows"} | fields)


def opens(table: pa.Table, test: pa.Table | None = None, last: str = "") -> OpenRows:
    return lambda: [ArrowRows(rows, last) for rows in (table, test) if rows is not None]


def test_numbers_and_words_with_a_target_are_a_table(tmp_path: Path) -> None:
    train = pa.table({"x": [0.0, 1.0, 2.0, 3.0], "colour": list("abab"), "y": [1, 2, 3, 4]})
    test = pa.table({"x": [9.0], "colour": ["c"], "y": [5]})
    for folder in (None, tmp_path):
        with open_dataset(spec(target="y"), 0, folder, open_rows=opens(train, test)) as data:
            assert data.facts == DataFacts((3,), outputs=1)
            assert (data.num_train, data.num_test) == (4, 1)
            assert data.told == ("colour has 1 values that no training row has, such as c",)
            (held_out,) = data.test_batches(9)
            assert held_out.data[1].tolist() == [5.0]
    with open_partitioned(spec(target="y"), 0, open_rows=opens(train, test)) as held:
        assert held.num_train == 4


def test_whole_numbers_beside_one_other_column_are_labels_and_example_i_is_always_the_same() -> None:
    table = pa.table({"x": [[i, i / 2] for i in range(10)], "kind": [i % 3 for i in range(10)]})
    with open_dataset(spec(target="kind", validation=0.2, limit=6), 0, open_rows=opens(table)) as data:
        assert data.facts == DataFacts((2,), classes=3)
        assert (data.num_train, data.num_test) == (6, 2)
        assert sum(data.class_counts()) == 6
        batches = [next(iter(data.batches([(0, np.array(ids))]))).data for ids in ([3, 0], [0], [3])]
    (x, labels), *singles = batches
    assert torch.equal(x[:, 0] % 3, labels.float())
    assert torch.equal(x, torch.cat([singles[1][0], singles[0][0]]))


@pytest.mark.parametrize("last", ["kind", "x"])
def test_a_part_is_for_validation_where_a_test_set_is_returned(last: str) -> None:
    table = pa.table(
        {"x": [float(i) if last == "x" else [float(i)] for i in range(10)], "kind": [i % 3 for i in range(10)]}
    )
    given = spec(target=last, validation=0.2, loader_processes=0)
    with open_dataset(given, 0, open_rows=opens(table, table)) as data:
        assert (data.num_train, data.num_validation, data.num_test) == (8, 2, 10)
    with pytest.raises(SpecRejected, match="returns a validation set of its own"):
        open_dataset(given, 0, open_rows=lambda: [ArrowRows(table)] * 3)


def test_photographs_are_turned_and_tokens_learn_what_follows() -> None:
    pixels = np.arange(10 * 8 * 6 * 3, dtype=np.uint8).reshape(10, 8, 6, 3)
    table = pa.table({"pixels": pixels.tolist(), "kind": [i % 2 for i in range(10)]})
    with open_dataset(spec(target="kind"), 0, open_rows=opens(table)) as data:
        assert (data.facts.inputs, data.facts.classes) == ((3, 8, 6), 2)
        assert (len(data.facts.mean), len(data.facts.std)) == (3, 3)
        assert len(next(iter(data.batches([(0, np.arange(3))])))) == 3
    tokens = pa.table({"ids": [[i, 5, 7, 9] for i in range(8)]})
    with open_dataset(spec(), 0, open_rows=opens(tokens)) as data:
        assert (data.facts.inputs, data.facts.vocabulary) == ((3,), 10)
        (batch,) = data.batches([(0, np.arange(1))])
    assert batch.data[0][0, 1:].tolist() == batch.data[1][0, :-1].tolist() == [5, 7]


def test_other_rows_are_dicts_and_one_that_lacks_something_may_be_skipped_but_not_a_lost_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = pa.table({"x": [[1.0, 2.0]] * 9 + [None], "z": [[1, 2]] * 10})
    skips = spec(on_error="skip", max_skipped=1)
    with open_dataset(skips, 0, open_rows=opens(table, table)) as data:
        (batch,) = data.batches([(0, np.arange(10))])
        assert {name: tuple(part.shape) for name, part in batch.data.items()} == {"x": (9, 2), "z": (9, 2)}
        assert batch.skipped == ((9, "ray:sets:rows: training example 9 cannot be read: x is missing"),)

        def lost(rows: ArrowRows, i: int) -> None:
            raise DataLost("block 0 is lost")

        monkeypatch.setattr(ArrowRows, "__getitem__", lost)
        with pytest.raises(DataLost):
            list(data.batches([(0, np.arange(2))]))


def test_what_will_not_do_is_refused() -> None:
    table = pa.table({"x": [[1.0, 2.0]] * 10, "y": [1] * 10})
    with pytest.raises(SpecRejected, match="runs without one; train it by `millrace run`"):
        open_dataset(spec(target="y"), 0)
    with pytest.raises(SpecRejected, match="there is no 'z' in sets:rows; it has x, y"):
        open_dataset(spec(target="z"), 0, open_rows=opens(table))
    with pytest.raises(SpecRejected, match="held-out set of ray:sets:rows has no column 'y'"):
        open_dataset(spec(target="y"), 0, open_rows=opens(table, table.select(["x"]), "x"))
    with pytest.raises(MillraceError, match="read one by one"):
        open_partitioned(spec(target="y"), 0, open_rows=opens(table))


@pytest.mark.parametrize(
    ("given", "name", "root", "function"),
    [
        ("ray:sets.own:rows", "ray:sets.own:rows", "data", "sets.own:rows"),
        ("ray:data/rows", "ray", "data/rows", ""),
        ("ray:/data/a:b", "ray", "/data/a:b", ""),
        ("ray", "ray", "data", ""),
    ],
)
def test_a_name_is_a_function_or_a_folder(given: str, name: str, root: str, function: str) -> None:
    found = DataSpec(name=given)
    assert (found.name, found.root, found.ray_function, found.kind) == (name, root, function, "ray")
