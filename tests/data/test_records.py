"""Examples that are no images: text, tables, columns of a user's own."""

from pathlib import Path

import numpy as np
import pytest
import torch

from trainers.data.config import DataSpec
from trainers.data.datasets import open_dataset
from trainers.data.facts import DataFacts
from trainers.errors import DataNotFound, MillraceError, SpecRejected, UserCodeFailed

USERS = "tests.data.usersets"
RAVEN = "once upon a midnight dreary, while I pondered, weak and weary"


def text(root: Path, **fields: object) -> DataSpec:
    return DataSpec.model_validate({"name": "text", "root": str(root), "context": 5, "validation": 0.3} | fields)


def table(root: Path, **fields: object) -> DataSpec:
    return DataSpec.model_validate({"name": "csv", "root": str(root), "target": "y", "validation": 0.25} | fields)


def test_a_window_learns_what_follows_each_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "raven.txt").write_text(RAVEN)
    with open_dataset(text(tmp_path / "raven.txt"), 0) as data:
        assert data.facts == DataFacts((5,), vocabulary=256, unit="byte")
        (batch,) = data.batches([(0, np.array([2, 0]))])
        tokens, targets = batch.data
        assert [bytes(row.tolist()).decode() for row in tokens] == [RAVEN[10:15], RAVEN[:5]]
        assert [bytes(row.tolist()).decode() for row in targets] == [RAVEN[11:16], RAVEN[1:6]]
        assert data.num_train == (int(len(RAVEN) * 0.7) - 1) // 5


def test_the_last_part_of_a_text_is_for_evaluation(tmp_path: Path) -> None:
    (tmp_path / "raven.txt").write_text(RAVEN)
    with open_dataset(text(tmp_path / "raven.txt"), 0) as data:
        seen = torch.cat([batch.data[0].flatten() for batch in data.test_batches(2)])
    rest = RAVEN[int(len(RAVEN) * 0.7) :]
    assert bytes(seen.tolist()).decode() == rest[: len(seen)]
    assert len(rest) - len(seen) <= 6


@pytest.mark.parametrize("shared", [False, True])
def test_characters_are_numbered_in_their_order(tmp_path: Path, shared: bool) -> None:
    """Also those of several bytes, and those of several files, in the order of the files' names."""
    words = "größer Ω, größer geht kaum"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "b").write_text(words[9:])
    (tmp_path / "text" / "a").write_text(words[:9])
    folder = tmp_path / "node" if shared else None
    for _ in range(2):  # the second process maps what the first has written
        with open_dataset(text(tmp_path / "text", tokens="characters"), 0, folder) as data:
            letters = sorted(set(words))
            assert data.facts == DataFacts((5,), vocabulary=len(letters), unit="character")
            (batch,) = data.batches([(0, np.arange(3))])
            assert "".join(letters[i] for i in batch.data[0].flatten().tolist()) == words[:15]


def test_two_texts_share_a_folder(tmp_path: Path) -> None:
    for words in (RAVEN, RAVEN[::-1]):
        (tmp_path / f"{words[0]}.txt").write_text(words)
        with open_dataset(text(tmp_path / f"{words[0]}.txt", tokens="characters"), 0, tmp_path / "node") as data:
            (batch,) = data.batches([(0, np.arange(1))])
            letters = sorted(set(words))
            assert "".join(letters[i] for i in batch.data[0].flatten().tolist()) == words[:5]


def test_a_large_text_is_not_read_into_memory(tmp_path: Path) -> None:
    """A file of 8 GB, of which only the windows that are asked for are there."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(8 * 2**30)
    with open_dataset(text(tmp_path / "large", context=1024), 0) as data:
        assert data.num_train * 1024 > 5 * 2**30
        (batch,) = data.batches([(0, np.array([data.num_train - 1]))])
        assert batch.data[0].shape == (1, 1024)


@pytest.mark.parametrize(
    ("content", "fields", "why"),
    [
        (b"short", {}, "no part may be shorter than data.context"),
        (b"\xff\xfe" * 40, {"tokens": "characters"}, "no text in UTF-8"),
        (b"", {}, "no part may be shorter"),
    ],
)
def test_a_text_that_will_not_do_is_refused(content: bytes, fields: dict, why: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(SpecRejected, match=why):
        open_dataset(text(tmp_path / "text", **fields), 0)


def test_a_table_becomes_numbers(tmp_path: Path) -> None:
    rows = [(i, "red" if i % 2 else "blue", 10 * i) for i in range(8)]
    (tmp_path / "t.csv").write_text("x,colour,y\n" + "".join(f"{x},{colour},{y}\n" for x, colour, y in rows))
    with open_dataset(table(tmp_path / "t.csv"), 0) as data:
        assert data.facts == DataFacts((3,), outputs=1)
        assert (data.num_train, data.num_test) == (6, 2)
        (batch,) = data.batches([(0, np.arange(6))])
        (held_out,) = data.test_batches(10)
    x, y = batch.data
    assert x[:, 0].mean().abs() < 1e-6
    assert x[:, 0].std(correction=0) == pytest.approx(1)
    assert torch.equal(x[:, 1] + x[:, 2], torch.ones(6)), "one of the two colours"
    assert sorted([*y.tolist(), *held_out.data[1].tolist()]) == [10.0 * i for i in range(8)]


def test_words_as_a_target_are_classes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y,x\n" + "".join(f"{'yes' if i % 3 else 'no'},{i}\n" for i in range(12)))
    with open_dataset(table(tmp_path / "t.csv"), 0) as data:
        assert data.facts == DataFacts((1,), classes=2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("x,y\n1,2\n3\n", "line 3, has 1 fields and the first line 2"),
        ("x,y\n1,2\n,4\n", "line 3: x is empty"),
        ("x,z\n1,2\n3,4\n", "there is no column 'y'; .* has x, z"),
        ("y\n1\n2\n3\n4\n", "no column besides the target"),
        ("x,y\n1,2\n", "has 1 rows"),
    ],
)
def test_a_table_that_will_not_do_names_the_place(content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(SpecRejected, match=why):
        open_dataset(table(tmp_path / "t.csv"), 0)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    for data in (text(tmp_path / "no"), table(tmp_path / "no")):
        with pytest.raises(DataNotFound, match=r"data\.root"):
            open_dataset(data, 0)


def test_columns_by_name_keep_their_types(tmp_path: Path) -> None:
    for folder in (None, tmp_path, tmp_path):
        with open_dataset(DataSpec(name=f"{USERS}:named", limit=4), 0, folder) as data:
            (batch,) = data.batches([(0, np.array([3, 1]))])
            assert data.num_train == 4
        assert list(batch.data) == ["words", "counts", "size"]
        assert batch.data["words"].tolist() == [[6, 7], [2, 3]]
        assert [part.dtype for part in batch.data.values()] == [torch.int64, torch.bool, torch.float32]


def test_four_arrays_of_numbers_are_vectors_with_labels() -> None:
    with open_dataset(DataSpec(name=f"{USERS}:vectors"), 0) as data:
        assert data.facts == DataFacts((3,), classes=2)


@pytest.mark.parametrize(
    ("name", "root", "why"),
    [
        ("vectors", "broken", "column 0, training row 2, holds .*nan.*; every number must be finite"),
        ("vectors", "unseen", r"the label of test row 2 is 5, which is not in 0\.\.1"),
        ("named", "ragged", "the test columns have different lengths"),
        ("named", "other", "both must have one form"),
    ],
)
def test_bad_columns_name_the_place(name: str, root: str, why: str) -> None:
    with pytest.raises(UserCodeFailed, match=why) as caught:
        open_dataset(DataSpec(name=f"{USERS}:{name}", root=root), 0)
    assert isinstance(caught.value, MillraceError)
