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
from trainers.data.datasets import open_dataset, open_partitioned
from trainers.errors import DataNotFound, SpecRejected
from trainers.spec import TrainSpec
from trainers.spec.resume_key import resume_key

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
    rows = {
        name: {"v": [[float(i), 0.0] for i in range(size)], "a": list(range(size)), "b": [0.5] * size}
        for name, size in SIZES.items()
    }
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
    images: (15, 5, 4),
}
USUAL: dict[Any, Any] = {
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
    test = names["held"] if make is not images else "valid"
    with opened(test=test, validation=0.25) as data:
        assert sizes(data) == EXPECTED.get(make, (15, 5, 6))
    if make in USUAL:
        with opened(test=test) as data:
            assert sizes(data) == USUAL[make]


SETS = "tests.data.usersets"


def folder_of_shards(folder: Path) -> Made:
    _, names = shards(folder)
    Path(names["held"].replace("*", "0")).unlink()
    return {"name": "webdataset", "root": str(folder)}, {}


@pytest.mark.parametrize(
    ("brings", "given"),
    [
        (hf, (15, 5, 4)),
        (lambda folder: (hf(folder)[0] | {"columns": ["a"], "target": "b"}, {}), (15, 5, 4)),
        (folder_of_shards, (15, 5, 4)),
        (images, (15, 5, 6)),
        (lambda _: ({"name": f"{SETS}:four_arrays"}, {}), (9, 3, 8)),
        (lambda _: ({"name": f"{SETS}:named"}, {}), (4, 1, 5)),
        (lambda _: ({"name": f"{SETS}:maps"}, {}), (22, 8, 9)),
        (lambda _: ({"name": f"{SETS}:words"}, {}), (9, 3, 4)),
        (lambda _: ({"name": "digits"}, {}), (1078, 359, 360)),
    ],
    ids=["hf", "hf table", "shards", "images", "arrays", "columns", "maps", "objects", "digits"],
)
def test_a_part_is_for_validation_where_a_test_set_is_brought(
    brings: Callable[[Path], Made], given: tuple[int, int, int], tmp_path: Path
) -> None:
    fields = brings(tmp_path)[0] | {"loader_processes": 0}

    def opened(spec: DataSpec) -> Dataset:
        (tmp_path / "node").mkdir(exist_ok=True)
        return open_dataset(spec, 0, tmp_path / "node")

    now, part = DataSpec.model_validate(fields), DataSpec.model_validate(fields | {"validation": 0.25})
    with opened(now) as before, opened(part) as data:
        num, tests = given[0] + given[1], [next(one.test_batches(500)).data for one in (before, data)]
        assert sizes(data) == given
        assert sizes(before) == (num, 0, given[2])
        mine, theirs = (list(tensors_of(one))[-1] for one in tests)  # inputs are standardised by what is trained
        assert torch.equal(mine, theirs)
    if data.fits_in_memory or fields["name"] == "image_folder":
        with open_partitioned(part, 0) as held:
            assert (held.num_train, held.num_validation, held.num_test) == given
    with opened(part.model_copy(update={"limit": 2})) as limited:
        assert (limited.num_train, limited.num_validation) == (2, given[1])
    for stored in (0.1, 0.25):  # as specs were stored when such a part was not taken
        old = now.model_dump(mode="json", exclude={"carve"}) | {"validation": stored}
        assert DataSpec.model_validate(old) == DataSpec.model_validate(DataSpec.model_validate(old).model_dump())
        with opened(DataSpec.model_validate(old)) as data:
            assert sizes(data) == (num, 0, given[2])


def test_a_part_of_what_brings_no_test_set_is_as_it_was_stored(tmp_path: Path) -> None:
    fields, _ = shards(tmp_path)
    old = DataSpec.model_validate(fields).model_dump(exclude={"carve"}) | {"validation": 0.2, "loader_processes": 0}
    for given, expected in ((old, (16, 4)), (old | {"carve": True}, (16, 4)), (old | {"validation": 0.1}, (18, 2))):
        with open_dataset(DataSpec.model_validate(given), 0) as data:
            assert (data.num_train, data.num_validation, data.num_test) == (expected[0], 0, expected[1])


def test_a_part_beside_a_validation_set_that_is_brought_is_refused() -> None:
    for name in ("six_arrays", "three_pairs", "three_maps"):
        with pytest.raises(SpecRejected, match="returns a validation set of its own"):
            open_dataset(DataSpec.model_validate({"name": f"{SETS}:{name}", "validation": 0.5}), 0)


def test_a_checkpoint_within_an_epoch_goes_on_with_what_was_held_out() -> None:
    def key(**data: Any) -> object:
        return resume_key(TrainSpec.model_validate({"data": data}))["data.validation"]

    assert key(name="csv", validation=0.1) == key(name="csv") == 0.1
    assert key(name="digits") is None
    assert key(name="digits", validation=0.1) == key(name="a:b", validation=0.1) == 0.1
    saved = [key(name="hf", **given) for given in ({}, {"validation": 0.1}, {"validation": "dev"})]
    before = DataSpec(name="hf").model_dump(exclude={"carve"})
    saved.append(key(**before | {"validation": 0.2}))
    assert len(set(saved)) == 4
    assert key(**before | {"validation": 0.1}) == saved[0]


def test_their_paths_are_those_of_the_submitter(tmp_path: Path) -> None:
    spec = TrainSpec.model_validate({"data": {"name": "csv", "root": "a.csv", "target": "y", "test": "b.csv"}})
    found = spec.resolved(tmp_path).data
    assert (found.root, found.test, found.validation) == (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"), None)
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
