"""webdataset's shards: the same examples as webdataset reads, any of them by its number, indexed once."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image
from webdataset import autodecode, tariterators

from trainers.data.batches import Dataset
from trainers.data.config import DataSpec
from trainers.data.datasets import open_dataset
from trainers.data.facts import DataFacts
from trainers.data.records import kept, shards
from trainers.errors import DataNotFound, MillraceError, SpecRejected


def spec(root: Path | str, **fields: object) -> DataSpec:
    return DataSpec.model_validate({"name": "webdataset", "root": str(root), "loader_processes": 0} | fields)


def vector(i: int) -> np.ndarray:
    return np.arange(3, dtype=np.float32) + i


def write(path: Path, numbers: range, **more: object) -> None:
    path.parent.mkdir(exist_ok=True)
    with webdataset.TarWriter(str(path)) as writer:
        for i in numbers:
            writer.write({"__key__": f"deep/{i:06d}", "npy": vector(i), "cls": i % 3, **more})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard, first in enumerate((0, 10, 20)):
        write(tmp_path / "shards" / f"train-{shard:03d}.tar", range(first, first + 10))
    return tmp_path / "shards"


def examples(data: Dataset, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    (batch,) = data.batches([(0, np.array(ids))])
    return batch.data[0], batch.data[1]


def test_any_example_is_found_by_its_number(folder: Path) -> None:
    write(folder / "val-000.tar", range(30, 34))
    with open_dataset(spec(folder), 0) as data:
        assert data.facts == DataFacts((3,), classes=3)
        assert (data.num_train, data.num_test) == (30, 4)
        x, y = examples(data, [25, 3, 10])
        (held_out,) = data.test_batches(9)
    assert x.tolist() == [vector(25).tolist(), vector(3).tolist(), vector(10).tolist()]
    assert y.tolist() == [1, 0, 1]
    assert held_out.data[0].tolist() == [vector(i).tolist() for i in range(30, 34)]


def test_examples_are_those_of_webdataset(tmp_path: Path) -> None:
    """Of several members, in its order, decoded as it does, images too."""
    parts = {"seg.png": np.full((4, 5, 3), 7, np.uint8), "json": {"a": [1]}, "txt": "größer", "npz": {"w": vector(1)}}
    write(tmp_path / "s" / "0.tar", range(4), **parts)
    with (tmp_path / "s" / "0.tar").open("rb") as file:
        members = [dict(member, __url__="") for member in tariterators.tar_file_iterator(file)]
    decode = autodecode.Decoder([autodecode.imagehandler("pil")])
    theirs = [decode(sample) for sample in tariterators.group_by_keys(members)]
    index = shards.indexed(spec(tmp_path / "s"), shards.shards_of(str(tmp_path / "s")), lambda _: None)
    reader = shards.ShardReader(index)
    assert index.kinds == ["cls", "json", "npy", "npz", "seg.png", "txt"]
    for i, sample in enumerate(theirs):
        for kind in index.kinds:
            mine, other = reader.read(i, kind), sample[kind]
            if kind == "npz":
                mine, other = mine["w"], other["w"]
            assert np.array_equal(np.asarray(mine), np.asarray(other)), kind


def test_images_with_labels_are_what_image_classification_knows(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    draw = np.random.default_rng(0)
    with webdataset.TarWriter(str(tmp_path / "s" / "0.tar")) as writer:
        for i in range(12):
            writer.write({"__key__": f"{i}", "png": draw.integers(0, 256, (8, 8, 3), np.uint8), "cls": i % 2})
    with open_dataset(spec(f"{tmp_path}/s/{{0..0}}.tar", validation=0.25, limit=5, random_crop=1), 0) as data:
        assert data.facts == DataFacts((3, 8, 8), classes=2, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        assert (data.num_train, data.num_test) == (5, 3)
        images, labels = examples(data, [0, 1])
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64


def test_the_index_is_made_once_until_a_shard_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    original = shards._examples
    monkeypatch.setattr(shards, "_examples", lambda path: read.append(path) or original(path))
    for _ in range(2):
        open_dataset(spec(folder), 0).close()
    assert len(read) == 3
    assert (folder / kept.HIDDEN).is_dir()
    write(folder / "train-001.tar", range(5))
    with open_dataset(spec(folder), 0) as data:
        assert data.num_train + data.num_test == 25
    assert len(read) == 6


def test_which_members_are_taken(folder: Path) -> None:
    with open_dataset(spec(folder, columns=["npy", "cls"]), 0) as data:
        (batch,) = data.batches([(0, np.array([0]))])
        assert list(batch.data) == ["npy", "cls"]
    for fields, why in (({"columns": ["wav"]}, "there is no 'wav'"), ({"target": "wav"}, r"data\.target")):
        with pytest.raises(SpecRejected, match=why):
            open_dataset(spec(folder, **fields), 0)


def test_bad_shards_name_the_place(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="there are no tar shards"):
        open_dataset(spec(tmp_path / "none-*.tar"), 0)
    shard = folder / "train-003.tar"
    for content, why in (
        ({"x.cls": b"one"}, r"train-003\.tar cannot be read: x\.cls holds b'one', which is no label"),
        ({"x.cls": b"1"}, r"train-003\.tar: example 0 of the shard has no \.npy"),
        ({"x.cls": b"1", "x.npy": b"no"}, None),
    ):
        with tarfile.open(shard, "w") as tar:
            for name, data in content.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        if why:
            with pytest.raises(SpecRejected, match=why):
                open_dataset(spec(folder), 0)
    with open_dataset(spec(folder, validation=0.04), 0) as data:
        where = data.num_train - 1
        with pytest.raises(MillraceError, match=rf"example {where} cannot be read: .*train-003\.tar: x\.npy cannot"):
            examples(data, [where])
    shard.write_bytes((folder / "train-000.tar").read_bytes()[:3000])
    with pytest.raises(SpecRejected, match=r"train-003\.tar cannot be read"):
        open_dataset(spec(folder), 0)
    Image.new("L", (2, 2)).save(tmp_path / "train.tar.png")
    with pytest.raises(SpecRejected, match=r"is no \.tar"):
        open_dataset(spec(tmp_path / "train.*.png"), 0)


def test_a_path_may_stand_behind_the_name() -> None:
    short = DataSpec.model_validate({"name": "webdataset:shards/{0..9}.tar"})
    assert short == DataSpec(name="webdataset", root="shards/{0..9}.tar")
    with pytest.raises(ValueError, match="give it once"):
        DataSpec.model_validate({"name": "hf:a", "root": "b"})
