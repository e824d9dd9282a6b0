"""Texts of several files and by a tokenizer: the same tokens wherever they are kept, bits by their bytes."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from trainers.data.batches import Dataset
from trainers.data.config import DataSpec
from trainers.data.datasets import open_dataset
from trainers.data.records import extras, kept, text_files
from trainers.errors import DataNotFound, SpecRejected
from trainers.tasks.language_model import LanguageModel

LINES = [f"line {i}: größer Ω, {'never ' * (i % 5)}again\n" for i in range(60)]
TEXT = "".join(LINES)


def spec(root: Path, **fields: object) -> DataSpec:
    return DataSpec.model_validate({"name": "text", "root": str(root), "context": 5, "validation": 0.3} | fields)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """The text in three files, one of them empty, and a hidden one."""
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    (folder / "a").write_text(TEXT[:700])
    (folder / "aa").write_text("")
    (folder / "b" / "c").write_text(TEXT[700:])
    (folder / ".hidden").write_text("no")
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    made.save(str(path))
    return path


def tokens(data: Dataset) -> list[int]:
    """Of all training windows."""
    (batch,) = data.batches([(0, np.arange(data.num_train))])
    return batch.data[0].flatten().tolist()


def test_the_bytes_of_a_folder_are_read_where_they_lie(texts: Path) -> None:
    with open_dataset(spec(texts), 0) as data:
        found = tokens(data)
        (held_out,) = data.test_batches(10_000)
    size = int(len(TEXT.encode()) * 0.7)
    assert bytes(found) == TEXT.encode()[: len(found)]
    assert len(found) == (size - 1) // 5 * 5
    assert bytes(held_out.data[1][0].tolist()) == TEXT.encode()[size + 1 : size + 6]


@pytest.mark.parametrize("piece", [1, 64, 2**16])
def test_a_tokenizers_text_is_cut_between_lines_and_characters(
    texts: Path, tokenizer: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "PIECE", piece)
    monkeypatch.setattr(text_files, "LONGEST", max(8, piece))
    with open_dataset(spec(texts, tokenizer=str(tokenizer)), 0) as data:
        whole = Tokenizer.from_file(str(tokenizer))
        size = int(len(TEXT.encode()) * 0.7)
        train = whole.decode(tokens(data), skip_special_tokens=False)
        assert TEXT.encode()[:size].decode(errors="ignore").startswith(bytes_of(whole, train))
        assert data.facts.vocabulary == whole.get_vocab_size() == 300


def bytes_of(tokenizer: Tokenizer, decoded: str) -> str:
    """What a byte-level tokenizer without a decoder gives, as text."""
    back = {c: i for i, c in enumerate(_unicode_of_bytes())}
    return bytes(back[c] for c in decoded.replace(" ", "")).decode(errors="ignore")


def _unicode_of_bytes() -> list[str]:
    """GPT-2's table: printable bytes stand for themselves."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(i) if i in own else chr(next(rest)) for i in range(256)]


@pytest.mark.parametrize("kind", ["characters", "tokenizer"])
@pytest.mark.parametrize("limit", [10**6, 0])
def test_tokens_are_made_once_and_kept(
    texts: Path, tokenizer: Path, kind: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the node's memory if they fit, beside the text if not, for later runs, until the text changes."""
    what = {"tokens": "characters"} if kind == "characters" else {"tokenizer": str(tokenizer)}
    data = spec(texts, memory_limit_bytes=limit, **what)
    with open_dataset(data, 0) as opened:
        private = tokens(opened)
    with open_dataset(data, 0, tmp_path / "node") as opened:
        assert tokens(opened) == private
    place = tmp_path / "node" if limit else tmp_path / kept.HIDDEN
    (made,) = place.glob("tokens-*/tokens")
    before = made.stat().st_mtime_ns
    with open_dataset(data, 0, tmp_path / "node") as opened:
        assert tokens(opened) == private
    assert made.stat().st_mtime_ns == before
    (texts / "a").write_text(TEXT[:699] + "z")
    with open_dataset(data, 0, tmp_path / "node"):
        assert len(list(place.glob("tokens-*/tokens"))) == 2


def test_bits_are_counted_by_the_bytes_of_the_test_text(texts: Path, tokenizer: Path) -> None:
    with open_dataset(spec(texts, tokenizer=str(tokenizer)), 0) as data:
        task = LanguageModel()
        task.facts = data.facts
        (batch,) = data.test_batches(10_000)
        found = task.metrics(lambda x: torch.zeros(*x.shape, 300), batch.data)
    test = TEXT.encode()[int(len(TEXT.encode()) * 0.7) :].decode(errors="ignore")
    count = len(Tokenizer.from_file(str(tokenizer)).encode(test).ids)
    assert found["bits_per_byte"].value == pytest.approx(math.log2(300) * count / len(test.encode()), rel=1e-3)


def test_what_will_not_do_is_refused(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="leave tokens out, or the tokenizer"):
        spec(texts, tokens="characters", tokenizer="t.json")
    with pytest.raises(DataNotFound, match=r"data\.tokenizer: there is no file"):
        open_dataset(spec(texts, tokenizer=str(tmp_path / "t.json")), 0)
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(SpecRejected, match="is no file of tokenizers"):
        open_dataset(spec(texts, tokenizer=str(tmp_path / "t.json")), 0)
    (tmp_path / "latin").write_bytes("größer".encode("latin-1") * 99)
    with pytest.raises(SpecRejected, match="latin is no text in UTF-8"):
        open_dataset(spec(tmp_path / "latin", tokens="characters"), 0)
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(SpecRejected, match=r"pip install 'millrace\[hf\]'"):
        open_dataset(spec(texts, tokenizer=str(tmp_path / "t.json")), 0)
