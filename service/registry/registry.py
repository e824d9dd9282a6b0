"""The registry: models of jobs that have a name and a version, with files of their own, which outlive the jobs'."""

import asyncio
import hashlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from service.database.job_store import Store
from service.errors import ModelNotFound, StorageFull
from service.jobs.views import JobView
from service.registry.versions import ModelVersion, VersionQuery, Versions
from service.storage.checkpoints import chunks, open_model
from service.storage.plain_file import open_plain
from service.storage.run_dirs import RunDirs
from service.tracking.tracker import Tracking

FILE = "model.safetensors"
TOLD_AGAIN = 100
"""How many of the last versions a tracker is told again when the service starts; it knows those that it has."""


class Registry:
    """The registered models of one service. A file lies once, under the SHA-256 of its content; whatever dies in
    between leaves a whole file that a version names, or one that none does. Its methods run on one event loop."""

    def __init__(self, store: Store, run_dirs: RunDirs, folder: Path, trackers: Sequence[Tracking] = ()) -> None:
        self.writer = store.writer
        self.versions = Versions(store.engine)
        self.run_dirs = run_dirs
        self.folder = folder
        self.trackers = [one for one in trackers if one.has_registry]

    async def start(self) -> None:
        """Tell trackers what they may not have heard."""
        if self.trackers:
            found, _ = await self.find(VersionQuery(limit=TOLD_AGAIN))
            for version in reversed(found):
                self._tell(version)

    async def find(self, query: VersionQuery) -> tuple[list[ModelVersion], int | None]:
        """Versions, newest first, and `before` of the next page."""
        return await asyncio.to_thread(self.versions.find, query)

    async def get(self, reference: str) -> ModelVersion:
        """`name@3`, or `name@latest`. Raises VersionNotFound."""
        return await asyncio.to_thread(self.versions.get, reference)

    async def register(self, name: str, job: JobView, which: str, notes: str, user: str) -> tuple[ModelVersion, bool]:
        """Make a model of a job the next version of a name. Returns whether it is new: the same one again is what it
        was.

        Raises:
            ModelNotFound: The job has no such model.
            StorageFull: There is no room for its file.
        """
        version, is_new = await asyncio.to_thread(self._register, name, job, which, notes, user)
        if is_new:
            self._tell(version)
        return version, is_new

    async def open(self, reference: str) -> tuple[ModelVersion, BinaryIO]:
        """A version, and its file, open. Raises VersionNotFound."""
        version = await self.get(reference)
        try:
            return version, await asyncio.to_thread(open_plain, self._path(version.sha256))
        except OSError as error:
            raise ModelNotFound(f"the file of {version.id} cannot be read: {error.strerror}") from error

    async def remove(self, version: ModelVersion) -> None:
        """Remove a version, and its file if no other has it."""

        def remove_file(is_last: bool) -> bool:
            if is_last:
                shutil.rmtree(self._path(version.sha256).parent, ignore_errors=True)
            return is_last

        future = self.writer.submit(lambda connection: self.versions.remove(connection, version), remove_file)
        await asyncio.wrap_future(future)

    def _register(self, name: str, job: JobView, which: str, notes: str, user: str) -> tuple[ModelVersion, bool]:
        run_dir = self.run_dirs.find(job.id).run_dir
        with open_model(run_dir, which) as source:
            sha256, size = self._keep(source)
        new = ModelVersion(
            id=name, name=name, version=0, job=job.id, which=which, user=user, created=time.time(), bytes=size,
            sha256=sha256, notes=notes, facts=_facts(job, which),
        )  # fmt: skip
        return self.writer.submit(lambda connection: self.versions.add(connection, new)).result()

    def _keep(self, source: BinaryIO) -> tuple[str, int]:
        """Copy a file to where it stays. Returns its SHA-256 and its size in bytes."""
        digest, size = hashlib.sha256(), 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".part-", dir=self.folder) as part:
                with (Path(part) / FILE).open("xb") as copy:
                    for chunk in chunks(source):
                        digest.update(chunk)
                        copy.write(chunk)
                        size += len(chunk)
                path = self._path(digest.hexdigest())
                path.parent.mkdir(exist_ok=True)
                (Path(part) / FILE).replace(path)
        except OSError as error:
            raise StorageFull(f"the model cannot be kept at {self.folder}: {error.strerror}") from error
        return digest.hexdigest(), size

    def _path(self, sha256: str) -> Path:
        return self.folder / sha256 / FILE

    def _tell(self, version: ModelVersion) -> None:
        for tracker in self.trackers:
            tracker.register(version.model_dump(mode="json"), self._path(version.sha256))


def _facts(job: JobView, which: str) -> dict[str, Any]:
    """What is said of the model of a job."""
    found = {"job_name": job.name, "model": job.spec.model.name, "data": job.spec.data.name}
    found |= {"task": job.spec.task.name, "algorithm": job.algorithm}
    result = job.result
    if which == "best" and result.best is not None:
        return found | {"epochs": result.best.epoch, "metrics": {result.best.metric: result.best.value}}
    return found | {"epochs": result.epochs, "metrics": result.metrics}
