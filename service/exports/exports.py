"""Finished models of jobs in other formats: each is written once, by a process of its own that ends."""

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import BinaryIO, Literal

from service.errors import ExportBroken, NotExportable, StorageFull
from service.exports.write import REFUSED
from service.storage.checkpoints import open_model
from service.storage.plain_file import open_plain
from service.turns import Turns

FileFormat = Literal["safetensors", "torch.save", "torch.export", "onnx"]
"""Those of `millrace export` that are one file."""
SUFFIX: dict[FileFormat, str] = {
    "safetensors": ".safetensors", "torch.save": ".pt", "torch.export": ".pt2", "onnx": ".onnx"
}  # fmt: skip
WEIGHTS: frozenset[FileFormat] = frozenset({"safetensors", "torch.save"})
"""Those that hold no computation, and need no code of the model's to be written."""
FOLDER = "exports"
"""In the run's own folder, with which it is removed."""
MOST_WAITING = 4
"""Models that one user may have in flight."""
WITHIN_S = 600.0
"""Of a process that is taken to hang. A large model takes a minute."""
COMMAND = (sys.executable, "-P", "-m", "service.exports.write")

logger = logging.getLogger(__name__)


class Exports:
    """The exported models of one service. All calls come from one event loop."""

    def __init__(self, within_s: float = WITHIN_S) -> None:
        self.within_s = within_s
        self.place = asyncio.Semaphore(1)
        """One process at a time: it takes half a gigabyte."""
        self.turns = Turns(MOST_WAITING, "models of yours are being exported")

    async def open(self, run_dir: Path, which: str, form: FileFormat, user: str) -> BinaryIO:
        """A model that a run has left in its folder, in a format, open.

        Raises:
            ModelNotFound: The run has left no such model.
            NotExportable: It cannot be written so; the sentence says why.
            TooManyInFlight, StorageFull, ExportBroken.
        """
        with await asyncio.to_thread(open_model, run_dir, which) as opened:
            stamp = os.fstat(opened.fileno())
        if form == "safetensors":
            return await asyncio.to_thread(open_model, run_dir, which)
        name = f"{which}-{stamp.st_ino:x}-{stamp.st_mtime_ns:x}{SUFFIX[form]}"
        with contextlib.suppress(FileNotFoundError):
            return await asyncio.to_thread(open_plain, run_dir / FOLDER / name)
        async with self.turns.place(user) as turn, turn, self.place:
            return await self._written(run_dir, which, form, name)

    async def _written(self, run_dir: Path, which: str, form: FileFormat, name: str) -> BinaryIO:
        """Written by now by whoever asked before, or else now."""
        folder = run_dir / FOLDER
        with contextlib.suppress(FileNotFoundError):
            return await asyncio.to_thread(open_plain, folder / name)
        await asyncio.to_thread(_make_room, folder, which, SUFFIX[form])
        await self._run(run_dir / f"{which}.safetensors", form, folder / name)
        return await asyncio.to_thread(open_plain, folder / name)

    async def _run(self, model: Path, form: FileFormat, target: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, str(model), form, str(target),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self.within_s):
                output, _ = await process.communicate()
        except TimeoutError:
            raise ExportBroken(f"the model was not written within {self.within_s:g} s; try a smaller one") from None
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
        said = output.decode(errors="replace").strip().splitlines()
        if process.returncode == REFUSED:
            raise NotExportable(said[-1])
        if process.returncode != 0:
            logger.error("%s could not be written as %s:\n%s", model, form, "\n".join(said))
            why = said[-1] if said else f"its process ended with {process.returncode}, perhaps for want of memory"
            raise ExportBroken(f"the model could not be written as {form}: {why}")


def _make_room(folder: Path, which: str, suffix: str) -> None:
    """The folder, without what was written of the model as it was before. Raises StorageFull."""
    try:
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{which}-*{suffix}"):
            old.unlink(missing_ok=True)
    except OSError as error:
        raise StorageFull(f"no model can be written to {folder}: {error.strerror}") from error
