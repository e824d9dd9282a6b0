"""What a copy in storage consists of."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from service.checkpoints import chunks

NUMBERED = re.compile(r"manifests/([0-9]{12})\.json")
OBJECT = re.compile(r"objects/[0-9a-f]{64}")
FILE = re.compile(r"model\.safetensors|checkpoints/[0-9]{1,20}/[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Beside its log, the files of a run directory that are copied."""
LIMIT_BYTES = 16 << 20
"""Of a manifest."""


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
        """What these bytes are."""
        return cls(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, file: BinaryIO) -> "Piece":
        """What is in a file; closes it."""
        digest, size = hashlib.sha256(), 0
        for chunk in chunks(file):
            digest.update(chunk)
            size += len(chunk)
        return cls(size_bytes=size, sha256=digest.hexdigest())


class Manifest(BaseModel):
    """A whole run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    log: tuple[Piece, ...] = ()
    """One after the other."""
    files: dict[str, Piece] = {}
    """By their paths in the run directory."""

    @field_validator("files")
    @classmethod
    def _of_a_run(cls, files: dict[str, Piece]) -> dict[str, Piece]:
        for name in files:
            if not FILE.fullmatch(name):
                raise ValueError(f"{name[:200]!r} is no file of a run")
        return files

    @property
    def pieces(self) -> frozenset[Piece]:
        """Everything that it names."""
        return frozenset((*self.log, *self.files.values()))

    @property
    def steps(self) -> set[str]:
        """Its checkpoints."""
        return {name.split("/")[1] for name in self.files if "/" in name}


def numbers(names: Mapping[str, int]) -> list[int]:
    """The manifests among the names in a copy, newest first."""
    return sorted((int(match[1]) for name in names if (match := NUMBERED.fullmatch(name))), reverse=True)


def ours(names: Iterable[str]) -> list[str]:
    """Of the names in a copy those that a run has, manifests first: while one of them is there, so are its objects."""
    return sorted(name for name in names if NUMBERED.fullmatch(name) or OBJECT.fullmatch(name))


def numbered(number: int) -> str:
    """A manifest's name within the copy."""
    return f"manifests/{number:012d}.json"
