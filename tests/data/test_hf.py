"""Folders of the library `datasets`: tables, records, images and tokens, by their splits."""

from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, DatasetDict, Features, Image, List, Value
from datasets import Dataset as Rows

from trainers.data.config import DataSpec
from trainers.data.datasets import open_dataset
from trainers.data.facts import DataFacts
from trainers.data.records import extras
from trainers.errors import DataNotFound, MillraceError, SpecRejected

datasets.disable_progress_bars()


def spec(root: Path, **fields: object) -> DataSpec:
    return DataSpec.model_validate({"name": f"hf:{root}", "loader_processes": 0} | fields)


def test_numbers_and_words_with_a_target_are_a_table(tmp_path: Path) -> None:
    train = Rows.from_dict({"x": [0.0, 1.0, 2.0, 3.0], "colour": list("abab"), "y": [1.0, 2.0, 3.0, 4.0]})
    test = Rows.from_dict({"x": [9.0], "colour": ["c"], "y": [5.0]})
    DatasetDict({"train": train, "validation": test, "test": train}).save_to_disk(tmp_path / "d")
    (tmp_path / "node").mkdir()
    with open_dataset(spec(tmp_path / "d", target="y"), 0, tmp_path / "node") as data:
        assert data.facts == DataFacts((3,), outputs=1)
        assert (data.num_train, data.num_test) == (4, 1)
        assert data.told == ("colour has 1 values that no training row has, such as c",)
        (held_out,) = data.test_batches(9)
        assert held_out.data[1].tolist() == [5.0]


def test_a_label_by_its_names_is_the_usual_target(tmp_path: Path) -> None:
    label = ClassLabel(names=["no", "yes", "never seen"])
    features = Features({"v": List(Value("float32"), length=2), "label": label})
    rows = {"v": [[i, i + 1] for i in range(10)], "label": [i % 2 for i in range(10)]}
    Rows.from_dict(rows, features).save_to_disk(tmp_path / "d")
    with open_dataset(spec(tmp_path / "d", validation=0.2, limit=6), 0) as data:
        assert data.facts == DataFacts((2,), classes=3)
        assert (data.num_train, data.num_test) == (6, 2)
        (batch,) = data.batches([(0, np.array([3, 0]))])
    v, labels = batch.data
    assert torch.equal(v[:, 0] % 2, labels.float())
    assert torch.equal(v[:, 1], v[:, 0] + 1)


def test_images_are_what_image_classification_knows(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images = [draw.integers(0, 256, (8, 8, 3), np.uint8) for _ in range(10)]
    features = Features({"image": Image(), "label": ClassLabel(names=["a", "b"])})
    Rows.from_dict({"image": images, "label": [0, 1] * 5}, features).save_to_disk(tmp_path / "d")
    with open_dataset(spec(tmp_path / "d", horizontal_flip=True), 0) as data:
        assert data.facts == DataFacts((3, 8, 8), classes=2, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        (batch,) = data.batches([(0, np.arange(3))])
        assert batch.images.shape == (3, 3, 8, 8)


def test_other_rows_are_dicts_by_name(tmp_path: Path) -> None:
    rows = {"ids": [[i, 1, 2] for i in range(8)], "mask": [[1, 1, 0]] * 8, "note": ["n"] * 8}
    Rows.from_dict(rows).save_to_disk(tmp_path / "d")
    with open_dataset(spec(tmp_path / "d", columns=["ids", "mask"], validation=0.25), 0) as data:
        (batch,) = data.batches([(0, np.arange(2))])
    assert {name: tuple(part.shape) for name, part in batch.data.items()} == {"ids": (2, 3), "mask": (2, 3)}
    assert batch.data["ids"].dtype == torch.int64


def test_a_column_of_tokens_learns_what_follows(tmp_path: Path) -> None:
    Rows.from_dict({"input_ids": [[i, 5, 7, 9] for i in range(8)]}).save_to_disk(tmp_path / "d")
    with open_dataset(spec(tmp_path / "d"), 0) as data:
        assert (data.facts.inputs, data.facts.vocabulary) == ((3,), 10)
        (batch,) = data.batches([(0, np.arange(1))])
    assert batch.data[0][0, 1:].tolist() == batch.data[1][0, :-1].tolist() == [5, 7]


def test_what_will_not_do_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataNotFound, match="save_to_disk"):
        open_dataset(spec(tmp_path / "none"), 0)
    Rows.from_dict({"x": [[float(i)] for i in range(9)] + [[None]], "y": [1.0] * 10}).save_to_disk(tmp_path / "d")
    with pytest.raises(SpecRejected, match="there is no 'z' in"):
        open_dataset(spec(tmp_path / "d", target="z"), 0)
    with (
        open_dataset(spec(tmp_path / "d", target="y", validation=0.3), 0) as data,
        pytest.raises(MillraceError, match=r"hf, training example 6: .*is not finite"),
    ):
        list(data.batches([(0, np.arange(7))]))
    DatasetDict({"fit": Rows.from_dict({"x": [1.0]})}).save_to_disk(tmp_path / "s")
    with pytest.raises(SpecRejected, match="has the splits fit, and no train"):
        open_dataset(spec(tmp_path / "s"), 0)
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(SpecRejected, match=r"pip install 'millrace\[hf\]'"):
        open_dataset(spec(tmp_path / "d"), 0)
