"""The storage of copies, named by an fsspec URL. All calls block."""

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from service.errors import StorageRefused, StorageUnreachable

CHUNK_BYTES = 8 << 20
"""How much of a file is held in memory while it is sent; S3 takes parts of at least 5 MiB."""
OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 2}}},
}
"""The libraries' own time-outs are many minutes."""
LOCAL = frozenset({"file", "local"})
WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs"})
PACKAGES = {"s3": "millrace[s3]", "s3a": "millrace[s3]", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
MARK = "millrace-storage"
"""An object that every storage in use has. Without it, a missing object does not prove that there is no copy."""


class Storage:
    """Objects under a URL. fsspec is imported when the first storage is opened, and finds credentials by itself."""

    def __init__(self, fs: Any, root: str, url: str) -> None:
        self.fs = fs
        self.root = root
        self.url = url
        """Without a password."""
        self.identity = ""
        """The content of its mark, which tells apart two storages that were set up under the same URL."""

    @classmethod
    def open(cls, url: str) -> "Storage":
        """The storage at a URL. Most libraries connect when it is first used, those of FTP and SFTP at once.

        Raises:
            StorageRefused: The URL is of no use.
            StorageUnreachable: Its library has connected at once, in vain.
        """
        protocol, _, path = url.partition("://")
        is_complete = path.strip("/") if protocol not in LOCAL else path.startswith("/") and path.strip("/")
        if "::" in url or not (is_complete or protocol == "memory"):
            remedy = "write file:///folder or s3://bucket/folder"
            raise StorageRefused(f"{shown(url)!r} is no URL of a storage; {remedy}")
        from fsspec.core import url_to_fs

        options = {"use_listings_cache": False, "skip_instance_cache": True, **OPTIONS.get(protocol, {})}
        try:
            fs, root = url_to_fs(url, **options)
        except ImportError as error:
            package = PACKAGES.get(protocol)
            remedy = f"pip install '{package}'" if package else str(error)
            raise StorageRefused(f"{protocol}:// needs a package that is not installed: {remedy}") from None
        except (TypeError, ValueError) as error:
            raise StorageRefused(f"{shown(url)} cannot be used: {error}") from None
        except Exception as error:  # whatever a library raises
            raise StorageUnreachable(_unreached(url, error)) from error
        return cls(fs, root.rstrip("/"), shown(url).rstrip("/"))

    def sizes(self, folder: str) -> dict[str, int]:
        """Names under a folder, relative to it, with their sizes in bytes; links are not among them.

        Raises:
            StorageUnreachable: Also if the storage has no mark, like a folder that is not mounted.
        """
        prefix = f"{self.root}/{folder}/"
        found: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError), self._reached():
            found = self.fs.find(prefix.rstrip("/"), detail=True)
        if not found:
            self.check_mark()
        return {
            name.removeprefix(prefix): int(info["size"])
            for name, info in found.items()
            if name.startswith(prefix) and info["type"] == "file" and not info.get("islink")
        }

    def read(self, name: str, limit_bytes: int) -> bytes:
        """The first bytes of an object, at most so many. Raises FileNotFoundError."""
        with self._reached():
            return bytes(self.fs.cat_file(f"{self.root}/{name}", start=0, end=limit_bytes))

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of an object, in chunks. Raises FileNotFoundError."""
        with self._reached():
            file = self.fs.open(f"{self.root}/{name}", "rb", block_size=CHUNK_BYTES, cache_type="none")
        with contextlib.closing(file):
            while True:
                with self._reached():
                    chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk

    def write(self, name: str, chunks: Iterable[bytes]) -> None:
        """Create or replace an object. If `chunks` raises, there is no object, or an incomplete one."""
        path = f"{self.root}/{name}"
        with self._writing():
            if self._protocol not in WITHOUT_FOLDERS:
                self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            file = self.fs.open(path, "wb", block_size=CHUNK_BYTES)
        try:
            for chunk in chunks:
                with self._writing():
                    file.write(chunk)
        except BaseException:
            _discard(file)
            raise
        with self._writing():
            file.close()

    def remove(self, folder: str, names: Iterable[str]) -> None:
        """Remove objects of a folder. It is no error if they are gone already."""
        for name in names:
            with contextlib.suppress(FileNotFoundError), self._reached():
                self.fs.rm_file(f"{self.root}/{folder}/{name}")

    def mark(self) -> None:
        """Mark this storage as in use, or read which one it is."""
        try:
            mark = self.read(MARK, 100)
        except FileNotFoundError:
            mark = secrets.token_hex(16).encode()
            self.write(MARK, [mark])
        self.identity = mark.decode(errors="replace")

    def check_mark(self) -> None:
        """Raise StorageUnreachable if this is not, or no longer, the storage in use."""
        try:
            self.read(MARK, 1)
        except FileNotFoundError:
            question = "is it the right place, and mounted?"
            raise StorageUnreachable(f"{self.url} has no {MARK}: {question}") from None

    def probe(self) -> None:
        """Write, read and remove a small object. Raises StorageUnreachable."""
        name, data = f"millrace-probe-{secrets.token_hex(8)}", secrets.token_bytes(64)
        self.write(name, [data])
        try:
            if self.read(name, 1024) != data:
                raise StorageUnreachable(f"{self.url} gives back other bytes than were written")
        except FileNotFoundError:
            raise StorageUnreachable(f"{self.url} does not have what was just written") from None
        finally:
            with self._reached():
                self.fs.rm_file(f"{self.root}/{name}")

    @property
    def _protocol(self) -> str:
        found = self.fs.protocol
        return str(found if isinstance(found, str) else found[0])

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn whatever a library raises into StorageUnreachable, except for FileNotFoundError."""
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StorageUnreachable(_unreached(self.url, error)) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._reached():
                yield
        except FileNotFoundError as error:  # no such bucket
            raise StorageUnreachable(f"{self.url} cannot be written to: {error}") from error


def shown(url: str) -> str:
    """A URL without its password, as it may be shown."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host).geturl() if host != parts.netloc else url


def _unreached(url: str, error: Exception) -> str:
    return f"{shown(url)} cannot be reached: {str(error) or type(error).__name__}"


def _discard(file: Any) -> None:
    """Abandon an incomplete file. Closing it would send what was written so far as if that were all."""
    from fsspec.spec import AbstractBufferedFile

    with contextlib.suppress(Exception):
        if isinstance(file, AbstractBufferedFile):
            file.discard()
            file.closed = True
        else:
            file.close()
