"""One copy of a dataset for all processes of a node: raw files in shared memory, written once and mapped by each."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from trainers.data.config import DataSpec
from trainers.data.examples import Arrays, Normalisation, Ragged, Source
from trainers.data.node_lock import Note, alone_on_node
from trainers.data.photographs import decode_into
from trainers.data.records.columns import ABOUT, Columns, map_columns, write_columns
from trainers.data.records.objects import ObjectSource

log = logging.getLogger(__name__)

ARRAYS = {"images": np.uint8, "labels": np.int64, "shapes": np.int64}
"""The files of each half of a set and what they hold, row-major; shapes are there where those of the images differ."""


Read = TypeVar("Read", bound=Source | ObjectSource | Columns)


def map_shared(data: DataSpec, folder: Path, read: Callable[[DataSpec], Read], note: Note = lambda _: None) -> Read:
    """The dataset of a spec, mapped read-only from a folder, where the first process of the node writes it.

    The others wait for it under a file lock. If the set is streamed, or there is no room for it, each process reads it
    for itself, without waiting. `note` is told what takes long. Raises what `read` and `decode_into` raise.
    """
    home = folder / f"{data.name.replace(':', '.')}-{_digest(data)}"
    unshared = home.with_suffix(".unshared")  # tells the other processes to read for themselves
    if not home.is_dir() and not unshared.exists():
        with alone_on_node(home.with_suffix(".lock"), note):
            if not home.is_dir() and not unshared.exists():
                source = read(data)
                if not _write(data, source, home, note):
                    unshared.touch()
                    return source
    return cast(Read, _map(home)) if home.is_dir() else read(data)


def _digest(data: DataSpec) -> str:
    """Distinguishes datasets in the same folder."""
    of_images = {"limit", "memory_limit_bytes", "random_resized_crop", "resize"}
    of_tables = {"target", "columns", "categories", "encoding", "on_error", "max_skipped"}
    of_any = {"name", "root", "validation", "carve", "test"}
    what = data.model_dump(include=of_any | of_images | of_tables)
    identity = json.dumps(what, sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def _write(data: DataSpec, source: Source | ObjectSource | Columns, home: Path, note: Note) -> bool:
    """Write a set beside `home` and rename it, so that a killed writer leaves nothing incomplete.

    Returns whether it is one that is held in memory and there was room for it.
    """
    part = home.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)  # of a writer that was killed: the lock is ours
    part.mkdir()
    try:
        if isinstance(source, ObjectSource):
            is_there = False
        elif isinstance(source, Columns):
            is_there = _write_columns(part, source, data.memory_limit_bytes)
        else:
            is_there = _write_images(part, data, source, note)
    except OSError as error:
        log.warning("no room to share the dataset in %s (%s); each process reads it for itself", home.parent, error)
        is_there = False
    if is_there:
        os.rename(part, home)
    else:
        shutil.rmtree(part, ignore_errors=True)
    return is_there


def _write_columns(part: Path, columns: Columns, limit_bytes: int) -> bool:
    """False for a set that is larger than the limit."""
    if columns.num_bytes > limit_bytes:
        return False
    _check_room(part, columns.num_bytes)
    write_columns(columns, part)
    return True


def _write_images(part: Path, data: DataSpec, source: Source, note: Note) -> bool:
    """False for a set that is larger than the limit."""
    if isinstance(source, Arrays):
        shapes = _write_arrays(part, source, data.memory_limit_bytes)
    else:
        shapes = decode_into(part, data, source, note)
    if shapes is None:
        return False
    about = {
        "shapes": shapes,
        "num_classes": source.num_classes,
        "mean": source.normalisation.mean,
        "std": source.normalisation.std,
        "num_validation": source.num_validation,
        "skipped": source.skipped if isinstance(source, Arrays) else (),
        "told": source.told if isinstance(source, Arrays) else (),
    }
    (part / "about.json").write_text(json.dumps(about))
    return True


def _check_room(folder: Path, num_bytes: int) -> None:
    if shutil.disk_usage(folder).free < num_bytes * 1.02:
        raise OSError(f"needs {num_bytes} bytes")


def _write_arrays(part: Path, arrays: Arrays, limit_bytes: int) -> dict[str, tuple[int, ...]] | None:
    """The shape of each file by its name; None for a set that is larger than the limit."""
    if arrays.num_bytes > limit_bytes:
        return None
    _check_room(part, arrays.num_bytes)
    files = {
        "train_images": arrays.train_images,
        "train_labels": arrays.train_labels,
        "test_images": arrays.test_images,
        "test_labels": arrays.test_labels,
    }
    for name, array in files.items():
        assert not isinstance(array, Ragged)  # those come from files, one by one
        np.ascontiguousarray(array).tofile(part / name)
    return {name: array.shape for name, array in files.items() if not isinstance(array, Ragged)}


def _map(home: Path) -> Arrays | Columns:
    """The arrays of `home` as read-only maps, which stay valid when the files are unlinked."""
    if (home / ABOUT).exists():
        return map_columns(home)
    about = json.loads((home / "about.json").read_text())
    maps = {
        name: np.asarray(np.memmap(home / name, ARRAYS[name.partition("_")[2]], mode="r", shape=tuple(shape)))
        for name, shape in about["shapes"].items()
    }
    images = {
        half: Ragged(maps[f"{half}_images"], maps[f"{half}_shapes"])
        if f"{half}_shapes" in maps
        else maps[f"{half}_images"]
        for half in ("train", "test")
    }
    return Arrays(
        train_images=images["train"],
        train_labels=maps["train_labels"],
        test_images=images["test"],
        test_labels=maps["test_labels"],
        num_classes=about["num_classes"],
        normalisation=Normalisation(tuple(about["mean"]), tuple(about["std"])),
        num_validation=about["num_validation"],
        skipped=tuple((int(row), str(why)) for row, why in about["skipped"]),
        told=tuple(about["told"]),
    )
