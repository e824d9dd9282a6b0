"""The format of a copy in storage."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from service.storage.checkpoints import chunks

NUMBERED = re.compile(r"manifests/([0-9]{12})\.json")
OBJECT = re.compile(r"objects/[0-9a-f]{64}")
FILE = re.compile(
    r"(?:model|best|raw)\.safetensors|checkpoints/[0-9]{1,20}/[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
    r"|traces/[0-9]{4,9}-worker-[0-9]{1,9}-[0-9]{1,3}\.json\.gz"
)
"""The files of a run directory that are copied besides its log."""
LIMIT_BYTES = 16 << 20
"""The greatest size of a manifest."""


class Piece(BaseModel):
    """A file, or a segment of the log."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @property
    def object(self) -> str:
        """Its name within the copy."""
        return f"objects/{self.sha256}"

    @classmethod
    def of(cls, data: bytes) -> "Piece":
        """The piece with these bytes."""
        return cls(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, file: BinaryIO) -> "Piece":
        """The piece with the content of a file. Closes the file."""
        digest, size = hashlib.sha256(), 0
        for chunk in chunks(file):
            digest.update(chunk)
            size += len(chunk)
        return cls(size_bytes=size, sha256=digest.hexdigest())


class Manifest(BaseModel):
    """All files of a run at one moment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    log: tuple[Piece, ...] = ()
    """Its segments in their order."""
    files: dict[str, Piece] = {}
    """Path in the run directory -> piece."""

    @field_validator("files")
    @classmethod
    def _of_a_run(cls, files: dict[str, Piece]) -> dict[str, Piece]:
        for name in files:
            if not FILE.fullmatch(name):
                raise ValueError(f"{name[:200]!r} is no file of a run")
        return files

    @property
    def pieces(self) -> frozenset[Piece]:
        """All pieces that it names."""
        return frozenset((*self.log, *self.files.values()))

    @property
    def steps(self) -> set[str]:
        """The steps of its checkpoints."""
        return {name.split("/")[1] for name in self.files if is_of_checkpoint(name)}


def is_of_checkpoint(name: str) -> bool:
    """Whether a file of a run belongs to a checkpoint."""
    return name.startswith("checkpoints/")


def numbers(names: Mapping[str, int]) -> list[int]:
    """The numbers of the manifests among the names in a copy, newest first."""
    return sorted((int(match[1]) for name in names if (match := NUMBERED.fullmatch(name))), reverse=True)


def ours(names: Iterable[str]) -> list[str]:
    """The names in a copy that are manifests or objects, manifests first: while one exists, so do its objects."""
    return sorted(name for name in names if NUMBERED.fullmatch(name) or OBJECT.fullmatch(name))


def numbered(number: int) -> str:
    """The name of a manifest within the copy."""
    return f"manifests/{number:012d}.json"
