"""One copy of a set for all processes of a node: raw files in shared memory, written once, mapped by everyone."""

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trainers.data.examples import Arrays, Normalisation, Source
from trainers.spec import DataSpec

log = logging.getLogger(__name__)

ARRAYS = {"train_images": np.uint8, "train_labels": np.int64, "test_images": np.uint8, "test_labels": np.int64}
"""Files of a set and what they hold, row-major."""


def share(data: DataSpec, folder: Path, read: Callable[[DataSpec], Source]) -> Source:
    """The set that `data` names, mapped read-only from `folder`; the first process of the node reads and writes it.

    The others wait for it under a file lock. A set that is streamed, or for which there is no room, each process reads
    for itself, without waiting. Raises what `read` raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / f"{data.name.replace(':', '.')}-{_digest(data)}"
    unshared = home.with_suffix(".unshared")  # a mark for the others
    if not home.is_dir() and not unshared.exists():
        with open(home.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go of it when its holder dies
            if not home.is_dir() and not unshared.exists():
                source = read(data)
                if not isinstance(source, Arrays) or not _write(source, home, data.memory_limit_bytes):
                    unshared.touch()
                    return source
    return _map(home) if home.is_dir() else read(data)


def _digest(data: DataSpec) -> str:
    """What distinguishes two sets that lie in the same folder."""
    identity = json.dumps([data.name, data.root, data.limit, data.memory_limit_bytes])
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def _write(arrays: Arrays, home: Path, limit_bytes: int) -> bool:
    """Whether the set now lies in `home`: written beside it and renamed, so that a killed writer leaves no half set."""
    if arrays.num_bytes > limit_bytes:
        return False
    part = home.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)  # of a writer that was killed: the lock is ours
    part.mkdir()
    try:
        if shutil.disk_usage(part).free < arrays.num_bytes * 1.02:
            raise OSError(f"needs {arrays.num_bytes} bytes")
        for name in ARRAYS:
            np.ascontiguousarray(getattr(arrays, name)).tofile(part / name)
    except OSError as error:
        log.warning("no room to share the dataset in %s (%s); this process keeps a copy of its own", home.parent, error)
        shutil.rmtree(part, ignore_errors=True)
        return False
    about = {
        "shapes": {name: getattr(arrays, name).shape for name in ARRAYS},
        "num_classes": arrays.num_classes,
        "mean": arrays.normalisation.mean,
        "std": arrays.normalisation.std,
    }
    (part / "about.json").write_text(json.dumps(about))
    os.rename(part, home)
    return True


def _map(home: Path) -> Arrays:
    """The arrays of `home` as read-only maps, which outlive the files' names."""
    about = json.loads((home / "about.json").read_text())
    maps = {
        name: np.memmap(home / name, dtype=dtype, mode="r", shape=tuple(about["shapes"][name]))
        for name, dtype in ARRAYS.items()
    }
    return Arrays(
        **{name: np.asarray(array) for name, array in maps.items()},
        num_classes=about["num_classes"],
        normalisation=Normalisation(tuple(about["mean"]), tuple(about["std"])),
    )
