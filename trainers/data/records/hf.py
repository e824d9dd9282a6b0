"""A folder of the library `datasets` on disk, mapped where it lies."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainers.data.config import DataSpec
from trainers.data.records.columns import Columns
from trainers.data.records.extras import need
from trainers.data.records.rows import Taken, split, taken
from trainers.data.records.table import columns_of_table
from trainers.data.records.table_files import AnyColumn, TableFile, values_of_arrow
from trainers.errors import DataNotFound, SpecRejected

TEST = ("validation", "valid", "val", "dev", "test")
"""Names of a split that is the test set; the first that is there."""


class HfExamples:
    """The rows of a split, as a map-style dataset."""

    def __init__(self, rows: Any, of: Taken) -> None:
        feature, self._of = rows.features[of.names[-1]], of
        is_image = {name: type(rows.features[name]).__name__ == "Image" for name in of.names}
        plain = [name for name in of.names if not is_image[name]]
        self._rows = rows.select_columns(list(of.names)).with_format("numpy", columns=plain, output_all_columns=True)
        self._labels = rows.select_columns([of.names[-1]]).with_format("arrow")
        self._are_tokens = len(of.names) == 1 and _are_tokens(feature)
        if of.is_pair and type(feature).__name__ == "ClassLabel":
            self.classes = feature.num_classes
        elif of.is_pair and any(is_image.values()):
            self.classes = int(pc.max(rows.with_format("arrow")[:][of.names[-1]]).as_py()) + 1
        if self._are_tokens:
            self.vocabulary = _largest(rows, of.names[0]) + 1

    @property
    def targets(self) -> Any:
        """(N,) the labels, -1 where one is missing; nothing where there are none."""
        return pc.fill_null(self._labels[:].column(0), -1).to_numpy() if hasattr(self, "classes") else ()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Any:
        """Raises ValueError where a value is missing."""
        parts = self._rows[int(i)]
        if missing := [name for name in self._of.names if parts[name] is None]:
            raise ValueError(f"{missing[0]} is missing")
        if self._are_tokens:
            (tokens,) = parts.values()
            return tokens[:-1], tokens[1:]
        return self._of.example(parts)


def read_hf(data: DataSpec) -> Columns | tuple[HfExamples, ...]:
    """The `Dataset` or `DatasetDict` in the folder `data.root`: a table, or its training set, maybe one for validation,
    and its test set.

    Numbers and words with a target are a table. Other rows are read one by one: a pair where one column besides the
    target is taken, else a dict by the columns' names; of a single column of tokens, these and those that follow them.

    Raises:
        DataNotFound: There is no such folder.
        SpecRejected: It is none, or a column is not there.
    """
    train, given = _splits(data)
    features = train.features
    labels = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
    of = taken(data, list(features), labels[0] if len(labels) == 1 else "")
    has_target = of.names[-1] in (data.target, *labels[:1])
    if has_target and all(_is_cell(features[name]) for name in of.names):
        names = data.model_copy(update={"target": of.names[-1], "columns": of.names[:-1]})
        if of.names[-1] in labels:
            names = names.model_copy(update={"categories": (*data.categories, of.names[-1])})
        tables = [_HfTable(data.root, part) for part in (train, *given)]
        return columns_of_table(names, tables, [data.root] * len(tables))
    if len(given) < 2 and (not given or data.test is not None or data.carved):
        chosen, rest = split(data, len(train))
        train, given = train.select(chosen), [train.select(rest), *given]
    return tuple(HfExamples(part, of) for part in (train, *given))


class _HfTable(TableFile):
    """The rows of one split."""

    def __init__(self, root: str, rows: Any) -> None:
        self._root, self._rows, self.names, self.num_rows = root, rows, list(rows.features), len(rows)

    def _values(self, name: str) -> tuple[AnyColumn, Any]:
        return values_of_arrow(self._root, name, self._column(name))

    def _found(self, name: str, row: int) -> Any:
        return self._column(name)[row].as_py()

    def _place(self, row: int) -> str:
        return f"{self._root}, row {row}"

    def _column(self, name: str) -> Any:
        return self._rows.select_columns([name]).with_format("arrow")[:].column(0)


def _splits(data: DataSpec) -> tuple[Any, list[Any]]:
    """The training split, and those that are held out, if there are some: for the test, or for validation and for the
    test."""
    need("datasets", "hf", "data: hf")
    import datasets

    try:
        loaded = datasets.load_from_disk(data.root)
    except FileNotFoundError as error:
        raise DataNotFound(
            f"there is no dataset of `datasets` in {data.root}; set data.root to what its save_to_disk wrote"
        ) from error
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise SpecRejected(f"data: {data.root} cannot be read as a dataset of `datasets`: {error}") from error
    splits = loaded if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
    for name in ("train", *data.given_sets):
        if name not in splits:
            raise SpecRejected(f"data: {data.root} has the splits {', '.join(splits)}, and no {name}")
    names = list(data.given_sets)
    if not isinstance(data.validation, str) and not (data.carved and data.test):
        names = [*[name for name in TEST if name in splits and name not in names][:1], *names]
    return splits["train"], [splits[name] for name in names]


def _is_cell(feature: Any) -> bool:
    """Whether a column holds numbers or words."""
    kind = type(feature).__name__
    return kind == "ClassLabel" or (kind == "Value" and not feature.dtype.startswith(("time", "date", "binary", "dur")))


def _are_tokens(feature: Any) -> bool:
    inner: Any = getattr(feature, "feature", None)
    return inner is not None and type(inner).__name__ == "Value" and inner.dtype.startswith(("int", "uint"))


def _largest(rows: Any, name: str, at_once: int = 10_000) -> int:
    """The largest number in a column of lists, which is read a part at a time."""
    parts: Sequence[Any] = [
        pc.max(pc.list_flatten(rows.with_format("arrow")[start : start + at_once][name])).as_py()
        for start in range(0, len(rows), at_once)
    ]
    return max((part for part in parts if part is not None), default=-1)
