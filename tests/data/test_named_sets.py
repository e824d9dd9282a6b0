"""Sets that a spec names besides the training set: for validation, and for the test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import webdataset
from PIL import Image
from pydantic import ValidationError

from trainers.data.batches import Dataset, tensors_of
from trainers.data.config import DataSpec
from trainers.data.datasets import open_dataset
from trainers.errors import DataNotFound, SpecRejected
from trainers.spec import TrainSpec

datasets.disable_progress_bars()

SIZES = {"train": 20, "valid": 4, "held": 6}
"""Examples of each set; the labels of one are all the same, but for the training set."""
Made = tuple[dict[str, Any], dict[str, str]]
"""Fields of `data`, and how each set is named there."""


def csv(folder: Path) -> Made:
    for name, size in SIZES.items():
        rows = [f"{len(name)},{i},{'ab'[i % 2]}" for i in range(size)]
        (folder / f"{name}.csv").write_text("which,x,kind\n" + "\n".join(rows) + "\n")
    fields = {"name": "csv", "root": str(folder / "train.csv"), "target": "kind", "categories": ["which"]}
    return fields, {name: str(folder / f"{name}.csv") for name in SIZES}


def hf(folder: Path) -> Made:
    rows = {name: {"v": [[float(i), 0.0] for i in range(size)]} for name, size in SIZES.items()}
    datasets.DatasetDict({name: datasets.Dataset.from_dict(given) for name, given in rows.items()}).save_to_disk(folder)
    return {"name": "hf", "root": str(folder), "columns": ["v"]}, {name: name for name in SIZES}


def shards(folder: Path) -> Made:
    for name, size in SIZES.items():
        with webdataset.TarWriter(str(folder / f"{name}-0.tar")) as writer:
            for i in range(size):
                writer.write({"__key__": f"{i:03d}", "npy": np.full(2, i, np.float32), "cls": i % 3})
    fields = {"name": "webdataset", "root": str(folder / "train-*.tar")}
    return fields, {name: str(folder / f"{name}-*.tar") for name in SIZES}


def images(folder: Path) -> Made:
    for name, size in SIZES.items():
        for i in range(size):
            path = folder / name / "ab"[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (i, 0, 0)).save(path)
    (folder / "held").rename(folder / "val")
    return {"name": "image_folder", "root": str(folder)}, {"valid": "valid", "held": "val"}


def text(folder: Path) -> Made:
    for name, size in SIZES.items():
        (folder / name).write_bytes(bytes(97 + i % 7 for i in range(5 * size + 1)))
    return {"name": "text", "root": str(folder / "train"), "context": 5}, {n: str(folder / n) for n in SIZES}


def characters(folder: Path) -> Made:
    fields, names = text(folder)
    return fields | {"tokens": "characters"}, names


MAKERS: list[Callable[[Path], Made]] = [csv, hf, shards, images, text, characters]


EXPECTED: dict[Any, Any] = {
    text: (14, 5, 6),  # of 101 tokens 75 are trained
    characters: (14, 5, 6),
    hf: (20, 4, 6),  # a split called `valid` is the usual one
    images: (20, 6, 4),  # and so is a folder called `val`
}


def sizes(data: Dataset) -> tuple[int, int, int]:
    """Of the three sets; all of their examples are read."""
    read = [sum(map(len, batches)) for batches in (data.validation_batches(3), data.test_batches(4))]
    assert read == [data.num_validation, data.num_test]
    (batch,) = data.batches([(0, np.arange(data.num_train))])
    assert len(batch) == data.num_train
    return data.num_train, data.num_validation, data.num_test


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_validation_set_a_test_set_or_both_are_named(make: Callable[[Path], Made], tmp_path: Path) -> None:
    fields, names = make(tmp_path)
    given = {"validation": names["valid"], "test": names["held"]}

    def opened(**sets: Any) -> Dataset:
        (tmp_path / "node").mkdir(exist_ok=True)
        return open_dataset(DataSpec.model_validate(fields | {"loader_processes": 0} | sets), 0, tmp_path / "node")

    with opened(**given) as data:
        assert sizes(data) == (20, 4, 6)
        first = next(data.test_batches(6)).data
    with opened(validation=names["held"]) as data:  # in place of a part of the training set
        assert sizes(data) == (20, 0, 6)
        again = next(data.test_batches(6)).data
        for mine, theirs in zip(tensors_of(first), tensors_of(again), strict=True):
            assert torch.equal(mine, theirs)
    with opened(test=names["held"] if make is not images else "valid", validation=0.25) as data:
        assert sizes(data) == EXPECTED.get(make, (15, 5, 6))


def test_their_paths_are_those_of_the_submitter(tmp_path: Path) -> None:
    spec = TrainSpec.model_validate({"data": {"name": "csv", "root": "a.csv", "target": "y", "test": "b.csv"}})
    found = spec.resolved(tmp_path).data
    assert (found.root, found.test, found.validation) == (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), 0.1)
    split = TrainSpec.model_validate({"data": {"name": "hf", "validation": "dev", "test": "test"}}).resolved(tmp_path)
    assert (split.data.validation, split.data.test) == ("dev", "test")
    words = {"name": "text", "root": "a", "tokenizer": "t.json"}
    assert TrainSpec.model_validate({"data": words}).resolved(tmp_path).data.root == str(tmp_path / "a")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"name": "digits", "test": "more"}, "digits has sets of its own"),
        ({"name": "mnist", "validation": "more"}, "mnist has sets of its own"),
        ({"name": "a:b", "test": "more"}, r"have it return \(train, validation, test\)"),
        ({"name": "csv", "validation": 1.5}, "less than 1"),
    ],
)
def test_sets_that_cannot_be_named_are_refused(data: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        DataSpec.model_validate(data)


def test_a_set_that_is_not_there_or_does_not_fit_is_named(tmp_path: Path) -> None:
    fields, names = csv(tmp_path)
    with pytest.raises(DataNotFound, match=r"there is no file .*none\.csv"):
        open_dataset(DataSpec.model_validate(fields | {"test": str(tmp_path / "none.csv")}), 0)
    Path(names["held"]).write_text("which,x,kind\n4,one,a\n4,two,b\n")
    with pytest.raises(SpecRejected, match=r"held\.csv: x has words, and .*train\.csv numbers"):
        open_dataset(DataSpec.model_validate(fields | {"test": names["held"]}), 0)
    Path(names["held"]).write_text("which,kind\n4,a\n4,b\n")
    with pytest.raises(SpecRejected, match=r"held\.csv has no column 'x'"):
        open_dataset(DataSpec.model_validate(fields | {"test": names["held"]}), 0)
    fields, _ = hf(tmp_path / "hf")
    with pytest.raises(SpecRejected, match="has the splits train, valid, held, and no dev"):
        open_dataset(DataSpec.model_validate(fields | {"validation": "dev"}), 0)
