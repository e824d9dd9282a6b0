"""Tar shards as the library `webdataset` writes them, indexed once, so that any example is found by its number."""

import glob
import io
import json
import os
import re
import tarfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from trainers.data.config import DataSpec
from trainers.data.draws import Int64Array
from trainers.data.node_lock import Note
from trainers.data.records.kept import digest_of, kept, on_disk
from trainers.errors import DataNotFound, DiskFull, SpecRejected

LABEL = "cls"

HELD_OPEN = 64
"""Shards of a process at a time."""


def _image(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        return image.convert("RGB") if image.mode not in ("1", "L") else image.convert("L")


DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "bmp", "webp", "gif", "tif", "tiff"), _image),
    **dict.fromkeys((LABEL, "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": lambda content: np.load(io.BytesIO(content), allow_pickle=False),
    "npz": lambda content: dict(np.load(io.BytesIO(content), allow_pickle=False)),
}
"""What the members of an example become, by the end of their names, as in `webdataset`; nothing is unpickled."""


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """Where the members of each example lie, mapped: example i of the shards in their order has its member of kind k at
    `offsets[i, k]`, `sizes[i, k]` bytes long, -1 where it has none."""

    shards: list[Path]
    kinds: list[str]
    shard: Int64Array  # (N,)
    offsets: Int64Array  # (N, K)
    sizes: Int64Array  # (N, K)
    labels: Int64Array  # (N,): what is in `cls`; -1 where there is none


def shards_of(root: str) -> list[Path]:
    """The shards in a folder, or those that a pattern with `*` or `{000..012}` means, in the order of their names.

    Raises DataNotFound where there are none.
    """
    pattern = os.path.join(root, "**", "*.tar") if os.path.isdir(root) else root
    found = sorted({path for one in _expanded(pattern) for path in glob.glob(one, recursive=True)})
    if not found:
        raise DataNotFound(f"there are no tar shards at {root}; set data.root to a folder of them, or to a pattern")
    if compressed := [path for path in found if not path.endswith(".tar")]:
        raise SpecRejected(f"data: {compressed[0]} is no .tar; examples are found by their places, so unpack it")
    return [Path(path) for path in found]


def _expanded(pattern: str) -> list[str]:
    """What the first `{000..012}` or `{a,b}` of a pattern means, and so on."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        return [pattern]
    ends = re.fullmatch(r"(\d+)\.\.(\d+)", braces[1])
    if ends:
        choices = [str(i).zfill(len(ends[1])) for i in range(int(ends[1]), int(ends[2]) + 1)]
    else:
        choices = braces[1].split(",")
    return [
        one for choice in choices for one in _expanded(pattern[: braces.start()] + choice + pattern[braces.end() :])
    ]


def indexed(data: DataSpec, shards: list[Path], note: Note) -> ShardIndex:
    """The index, kept beside the shards in `.millrace`, where a later run finds it until a shard has changed.

    Raises:
        SpecRejected: A shard cannot be read, or a label is no number; names shard and member.
    """
    name = f"index-{digest_of('shards', shards)}"
    place = Path(data.root) if os.path.isdir(data.root) else shards[0].parent
    try:
        folder = kept(name, on_disk(place / "shards"), lambda part: _write(part, shards, note), note)
    except OSError as error:
        raise DiskFull(f"there is no room for the index of {data.root}: {error}") from error
    kinds = json.loads((folder / "kinds.json").read_text())
    arrays = (np.load(folder / f"{which}.npy", mmap_mode="r") for which in ("shard", "offsets", "sizes", "labels"))
    return ShardIndex(shards, kinds, *arrays)


def _write(folder: Path, shards: list[Path], note: Note) -> None:
    rows: list[tuple[int, dict[str, tuple[int, int]], int]] = []
    for number, path in enumerate(shards):
        note(f"indexes the shards, {number:,} of {len(shards):,}")
        rows += [(number, *example) for example in _examples(path)]
    kinds = sorted({kind for _, members, _ in rows for kind in members})
    where = np.array([[members.get(kind, (0, -1)) for kind in kinds] for _, members, _ in rows], np.int64)
    where = where.reshape(len(rows), len(kinds), 2)
    np.save(folder / "shard.npy", np.array([number for number, _, _ in rows], np.int64))
    np.save(folder / "offsets.npy", np.ascontiguousarray(where[..., 0]))
    np.save(folder / "sizes.npy", np.ascontiguousarray(where[..., 1]))
    np.save(folder / "labels.npy", np.array([label for _, _, label in rows], np.int64))
    (folder / "kinds.json").write_text(json.dumps(kinds))


def _examples(path: Path) -> list[tuple[dict[str, tuple[int, int]], int]]:
    """Of each example its members' places and sizes by kind, and its label. Files of one name before the first dot that
    stand together are one example."""
    found: list[tuple[dict[str, tuple[int, int]], int]] = []
    last, size = None, path.stat().st_size
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                stem, _, kind = base.partition(".")
                if not member.isfile() or not stem or not kind:
                    continue
                if member.offset_data + member.size > size:
                    raise tarfile.ReadError(f"{member.name} is cut off")
                if (folder, stem) != last:
                    found.append(({}, -1))
                elif kind.lower() in found[-1][0]:
                    raise tarfile.ReadError(f"it has {member.name} twice")
                last = (folder, stem)
                members = found[-1][0]
                members[kind.lower()] = (member.offset_data, member.size)
                if kind.lower() == LABEL:
                    found[-1] = (members, _label(tar, member))
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise SpecRejected(f"data: {path} cannot be read: {error}; write the shard anew, or leave it out") from error
    return found


def _label(tar: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    file = tar.extractfile(member)
    content = b"" if file is None else file.read()
    try:
        return int(content)
    except ValueError:
        raise ValueError(f"{member.name} holds {content[:20]!r}, which is no label") from None


class ShardReader:
    """Reads members by their places. Each process has its own."""

    def __init__(self, index: ShardIndex) -> None:
        self.index = index
        self._files: OrderedDict[int, int] = OrderedDict()

    def read(self, i: int, kind: str) -> Any:
        """The member of one kind of example i, decoded. Raises ValueError, which names shard and member."""
        place = self.index.kinds.index(kind)
        offset, size = int(self.index.offsets[i, place]), int(self.index.sizes[i, place])
        if size < 0:
            raise ValueError(f"{self._shard(i)}: example {i} has no .{kind}")
        content = os.pread(self._file(int(self.index.shard[i])), size, offset)
        try:
            decode = DECODERS[kind.rpartition(".")[2]]
            return decode(content)
        except Exception as error:
            raise ValueError(f"{self._shard(i)}: {self._name(i, offset)} cannot be read: {error}") from error

    def _shard(self, i: int) -> Path:
        return self.index.shards[int(self.index.shard[i])]

    def _file(self, shard: int) -> int:
        if shard not in self._files:
            if len(self._files) == HELD_OPEN:
                os.close(self._files.popitem(last=False)[1])
            self._files[shard] = os.open(self.index.shards[shard], os.O_RDONLY)
        self._files.move_to_end(shard)
        return self._files[shard]

    def _name(self, i: int, offset: int) -> str:
        with tarfile.open(self._shard(i), "r:") as tar:
            return next((member.name for member in tar if member.offset_data == offset), f"example {i}")

    def __del__(self) -> None:
        for file in self._files.values():
            os.close(file)
