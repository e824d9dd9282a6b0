"""Arrays of any type and shape, a row an example: a tuple of them, or a dict by name."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainers.data.batches import EVALUATION, Batch, Data, Dataset, Plan, Skipped
from trainers.data.delivery import Delivery
from trainers.data.draws import Int64Array
from trainers.data.facts import NO_CLASS, DataFacts
from trainers.data.records.bad_rows import BadRows
from trainers.errors import UserCodeFailed

AnyArray = npt.NDArray[Any]

AT_ONCE = 1000
"""Rows whose labels are counted at a time."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Two halves with the same columns: what is trained, and what is held out. A tuple's columns are named by their
    places."""

    train: dict[str, AnyArray]
    test: dict[str, AnyArray]
    is_tuple: bool
    facts: DataFacts
    told: tuple[str, ...] = ()
    """What a person should know of it, in sentences without their ends."""
    num_validation: int = 0
    """How many of the rows that are held out, the first ones, are the validation set; the rest are the test set."""
    skipped: tuple[Skipped, ...] = ()
    """Training rows that were left out, and what is wrong with each."""

    @property
    def num_bytes(self) -> int:
        """Of all columns."""
        return sum(column.nbytes for half in (self.train, self.test) for column in half.values())


class ColumnsDataset(Dataset):
    """A dataset of columns, which are private or mapped from the node's shared memory."""

    fits_in_memory = True

    def __init__(self, columns: Columns, limit: int | None, device: torch.device) -> None:
        self.facts, self.told, self.skipped = columns.facts, columns.told, columns.skipped
        self._columns: Columns | None = columns
        self._delivery = Delivery(device)
        self.num_validation = columns.num_validation
        self.num_train, self.num_test = _rows(columns.train), _rows(columns.test) - columns.num_validation
        if limit is not None:
            self.num_train = min(limit, self.num_train)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        for epoch, examples in plan:
            with self._delivery.beside():
                data = self._taken(self._opened().train, examples)
            yield self._delivery.delivered(Batch(data, epoch, examples))

    def _evaluated(self, minibatches: Iterator[Int64Array]) -> Iterator[Batch]:
        for examples in minibatches:
            with self._delivery.beside():
                data = self._taken(self._opened().test, examples)
            yield self._delivery.delivered(Batch(data, EVALUATION, examples))

    def labels(self) -> Int64Array | None:
        """(N,) of the training half, where a pair's second column holds some."""
        if not self.facts.classes:
            return None
        _, labels = self._opened().train.values()
        return np.asarray(labels[: self.num_train], np.int64)

    def class_counts(self) -> tuple[int, ...]:
        classes = self.facts.classes or self.facts.pixel_classes
        if not classes:
            return ()
        counts = np.zeros(classes, np.int64)
        _, column = self._opened().train.values()
        for start in range(0, self.num_train, AT_ONCE):
            labels = column[start : min(start + AT_ONCE, self.num_train)]
            counts += np.bincount(labels[labels < classes], minlength=classes)  # without pixels that do not count
        return tuple(counts.tolist())

    def close(self) -> None:
        self._columns = None

    def _taken(self, half: dict[str, AnyArray], examples: Int64Array) -> Data:
        rows = {name: self._delivery.taken(column, examples) for name, column in half.items()}
        return tuple(rows.values()) if self._opened().is_tuple else rows

    def _opened(self) -> Columns:
        assert self._columns is not None, "a minibatch was asked of a dataset after close()"
        return self._columns


def columns_of(train: Any, test: Any, name: str, other: str = "test", most: float | None = None) -> Columns:
    """Columns from a tuple or a dict of arrays for each half.

    Numbers become float32 or int64, as torch's losses take them. A pair's second column is what is learned: labels if
    it holds integers, numbers if not.

    other: What the second half is called where something is wrong with it. most: As `data.max_skipped`, where rows that
    cannot be used may be left out.

    Raises UserCodeFailed, or TooManySkipped.
    """
    if type(train) is not type(test) or not isinstance(train, tuple | dict):
        raise UserCodeFailed(f"{name}: both halves must be tuples, or both dicts, of arrays with a row an example")
    is_tuple = not isinstance(train, dict)
    halves = _named(train, name), _named(test, name)
    for half, which in zip(halves, ("training", other), strict=True):
        sizes = {column: len(array) for column, array in half.items()}
        if len(set(sizes.values())) != 1:
            raise UserCodeFailed(f"{name}: the {which} columns have different lengths: {sizes}")
        if not _rows(half):
            raise UserCodeFailed(f"{name}: there are no {which} examples; both halves are needed")
    first, second = ({c: (a.shape[1:], a.dtype) for c, a in half.items()} for half in halves)
    if first != second:
        raise UserCodeFailed(f"{name}: training columns are {first}, {other} columns {second}; both must have one form")
    kept, bad = _sound(halves[0], name, "training", _facts(halves[0]), most)
    facts = _facts(kept)
    others, not_seen = _sound(halves[1], name, other, facts, None if most is None else _rows(halves[1]))
    told = tuple(f"{why}, so no evaluation has it" for _, why in not_seen)
    return Columns(kept, others, is_tuple=is_tuple, facts=facts, told=told, skipped=bad)


def _sound(
    half: dict[str, AnyArray], name: str, which: str, facts: DataFacts, most: float | None
) -> tuple[dict[str, AnyArray], tuple[Skipped, ...]]:
    """The rows that can be used, and what is wrong with the others."""
    bad = BadRows(_rows(half), most)
    for column, array in half.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            rows = np.unique(np.argwhere(~np.isfinite(array))[:, 0]).tolist()
            bad.add(rows, partial(_not_finite, f"{name}, column {column}, {which}", array))
    if facts.classes or facts.pixel_classes:
        _check_labels(half, f"{name}: the label of {which}", facts, bad)
    if not bad.skipped:
        return half, ()
    if not len(bad.kept):
        raise UserCodeFailed(f"{name}: no {which} row can be used; the first: {bad.skipped[0][1]}")
    return {column: array[bad.kept] for column, array in half.items()}, bad.skipped


def _not_finite(where: str, array: AnyArray, row: int) -> str:
    return f"{where} row {row}, holds {array[row]}; every number must be finite"


def _named(half: Any, name: str) -> dict[str, AnyArray]:
    items: Mapping[Any, Any] = half if isinstance(half, dict) else dict(enumerate(half))
    return {str(column): _array(values, f"{name}, column {column}") for column, values in items.items()}


def _array(values: Any, name: str) -> AnyArray:
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim == 0 or array.dtype.kind not in "fiub":
        raise UserCodeFailed(f"{name} is {array.dtype} of shape {array.shape}; it must be numbers, a row an example")
    if array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
    elif array.dtype != np.uint8 and array.dtype.kind != "b":
        array = array.astype(np.int64, copy=False)
    return np.ascontiguousarray(array)


def _check_labels(half: dict[str, AnyArray], what: str, facts: DataFacts, bad: BadRows) -> None:
    classes, ignores = facts.classes or facts.pixel_classes, bool(facts.pixel_classes)  # NO_CLASS stands for none
    _, labels = half.values()
    wrong = np.argwhere(((labels < 0) | (labels >= classes)) & ~(ignores & (labels == NO_CLASS)))
    rows, places = np.unique(wrong[:, 0], return_index=True)
    first = dict(zip(rows.tolist(), places.tolist(), strict=True))

    def told(row: int) -> str:
        place = tuple(wrong[first[row]])
        pixel = f", pixel {place[1]}, {place[2]}," if len(place) > 1 else ""
        found = f"{what} row {row}{pixel} is {labels[place]}"
        return f"{found}, which is not in 0..{classes - 1}, those of the training rows"

    bad.add(first, told)


def _facts(half: dict[str, AnyArray]) -> DataFacts:
    columns = list(half.values())
    inputs: tuple[int, ...] = columns[0].shape[1:] or (1,)
    if len(columns) != 2:
        return DataFacts(inputs)
    targets = columns[1]
    if targets.dtype.kind in "iu" and targets.ndim == 1:
        return DataFacts(inputs, classes=int(targets.max(initial=0)) + 1)
    outputs = 1 if targets.ndim == 1 else int(np.prod(targets.shape[1:]))
    if targets.dtype.kind in "iu" and targets.ndim == 3 and len(inputs) == 3 and targets.shape[1:] == inputs[1:]:
        found = np.unique(targets)
        return DataFacts(inputs, outputs=outputs, pixel_classes=int(found[found != NO_CLASS].max(initial=0)) + 1)
    return DataFacts(inputs, outputs=outputs)


def _rows(half: dict[str, AnyArray]) -> int:
    return len(next(iter(half.values())))


# -- one copy a node --------------------------------------------------------------------------------------------------

ABOUT = "columns.json"


def write_columns(columns: Columns, folder: Path) -> None:
    """Write the columns into a folder, a file each."""
    for half, named in (("train", columns.train), ("test", columns.test)):
        for place, array in enumerate(named.values()):
            np.save(folder / f"{half}-{place}.npy", array)
    about = {"names": list(columns.train), "is_tuple": columns.is_tuple, "facts": asdict(columns.facts)}
    about |= {"told": columns.told, "num_validation": columns.num_validation, "skipped": columns.skipped}
    (folder / ABOUT).write_text(json.dumps(about))


def map_columns(folder: Path) -> Columns:
    """The columns of a folder as read-only maps, which stay valid when the files are unlinked."""
    about = json.loads((folder / ABOUT).read_text())
    train, test = (
        {
            name: np.asarray(np.load(folder / f"{half}-{place}.npy", mmap_mode="r"))
            for place, name in enumerate(about["names"])
        }
        for half in ("train", "test")
    )
    facts: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in about["facts"].items()
    }
    skipped = tuple((int(row), str(why)) for row, why in about["skipped"])
    found = DataFacts(**facts), tuple(about["told"]), about["num_validation"], skipped
    return Columns(train, test, about["is_tuple"], *found)
