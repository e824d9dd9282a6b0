"""The figures of sweeps' reports: each version of a sweep is drawn once, by a process of its own that ends."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from service.errors import DrawingFailed, FigureNotFound
from service.sweeps.trial_store import TrialStore
from service.turns import Turns

FOLDER = ".figures"
"""Beside the sweeps."""
AT_ONCE = 2
"""Processes that draw, of 150 MB each."""
MOST_WAITING = 16
"""Drawings that one user may have in flight."""
SILENT_S = 300.0
"""Of a process that is taken to hang. It says a line for each trial read and each figure drawn: parts of a second."""
FRESH_S = 15.0
"""How long a drawing of a sweep that still runs is good for: it changes with each evaluation of each trial, and to draw
takes seconds."""
KEPT = 50
"""Sweeps whose figures are kept on the disk, half a megabyte each."""
READ_BYTES = 4096
COMMAND = (sys.executable, "-P", "-m", "service.sweeps.reporting.draw")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drawing:
    """The figures of one version of a sweep."""

    version: str
    folder: Path
    names: tuple[str, ...]
    drawn_s: float = field(default_factory=time.monotonic)

    def is_of(self, store: TrialStore, version: str, fresh_s: float) -> bool:
        """Whether these still are the figures of the sweep."""
        still_runs = not store.state.is_terminal and time.monotonic() - self.drawn_s < fresh_s
        return self.version == version or still_runs


class Drawings:
    """The figures of the sweeps of one service. All calls come from one event loop."""

    def __init__(self, sweeps: Path, fresh_s: float = FRESH_S, silent_s: float = SILENT_S) -> None:
        self.folder = sweeps / FOLDER
        self.fresh_s = fresh_s
        self.silent_s = silent_s
        self.command = COMMAND
        self.drawn: dict[str, Drawing] = {}
        """By the sweep, the one that was drawn first before the others."""
        self.under_way: dict[str, asyncio.Task[Drawing]] = {}
        self.places = asyncio.Semaphore(AT_ONCE)
        self.turns = Turns(MOST_WAITING, "reports of yours are being drawn")

    async def start(self) -> None:
        """Remove what an earlier service has drawn: this one may draw otherwise."""
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def stop(self) -> None:
        """End what still draws, and remove the figures."""
        tasks = list(self.under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.start()

    async def forget(self, sweep: str) -> None:
        """Remove the figures of a sweep that is removed."""
        if (found := self.drawn.pop(sweep, None)) is not None:
            await asyncio.to_thread(shutil.rmtree, found.folder, ignore_errors=True)

    async def names(self, store: TrialStore, user: str) -> tuple[str, ...]:
        """Of all figures of a sweep's report, in order. Raises DrawingFailed, TooManyInFlight."""
        return (await self._of(store, user)).names

    async def file(self, store: TrialStore, name: str, user: str) -> bytes:
        """One of the figures. Raises FigureNotFound, DrawingFailed, TooManyInFlight."""
        while True:
            found = await self._of(store, user)
            if name not in found.names:
                there = ", ".join(found.names) or "none yet"
                raise FigureNotFound(f"the report has no figure {name!r}, only {there}")
            try:
                return await asyncio.to_thread((found.folder / name).read_bytes)
            except FileNotFoundError:  # a later drawing has just taken its place
                if self.drawn.get(store.folder.name) is found:
                    del self.drawn[store.folder.name]

    async def _of(self, store: TrialStore, user: str) -> Drawing:
        """The figures as they are drawn, or being drawn, or else drawn now."""
        sweep = store.folder.name
        version = await asyncio.to_thread(lambda: store.version)
        found = self.drawn.get(sweep)
        if found is not None and await asyncio.to_thread(found.is_of, store, version, self.fresh_s):
            return found
        if (task := self.under_way.get(sweep)) is None:
            task = asyncio.create_task(self._draw(store, version, user), name=f"draw {sweep}")
            self.under_way[sweep] = task
            task.add_done_callback(lambda _: self.under_way.pop(sweep, None))
        return await asyncio.shield(task)

    async def _draw(self, store: TrialStore, version: str, user: str) -> Drawing:
        async with self.turns.place(user) as turn, turn, self.places:
            into = await asyncio.to_thread(self._new_folder)
            try:
                names = await self._run(store.folder, into)
            except BaseException:
                await asyncio.to_thread(shutil.rmtree, into, ignore_errors=True)
                raise
        found = Drawing(version, into, tuple(sorted(names)))
        replaced = [self.drawn.pop(store.folder.name, None)]
        self.drawn[store.folder.name] = found
        if len(self.drawn) > KEPT:
            replaced.append(self.drawn.pop(next(iter(self.drawn))))
        for old in filter(None, replaced):
            await asyncio.to_thread(shutil.rmtree, old.folder, ignore_errors=True)
        return found

    def _new_folder(self) -> Path:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(dir=self.folder))
        except OSError as error:
            raise DrawingFailed(f"there is no room for the figures at {self.folder}: {error.strerror}") from error

    async def _run(self, sweep: Path, into: Path) -> list[str]:
        """The names of the figures that a process of its own has drawn into a folder."""
        process = await asyncio.create_subprocess_exec(
            *self.command,
            str(sweep),
            str(into),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            said = await self._listen(process)
            code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.wait())
        if code != 0:
            logger.error("the figures of %s could not be drawn:\n%s", sweep.name, said)
            raise DrawingFailed(f"the figures could not be drawn: {_why(code, said)}")
        return await asyncio.to_thread(os.listdir, into)

    async def _listen(self, process: asyncio.subprocess.Process) -> str:
        """The last that the process says, when it says no more."""
        assert process.stdout is not None
        said = b""
        while True:
            try:
                more = await asyncio.wait_for(process.stdout.read(READ_BYTES), self.silent_s)
            except TimeoutError:
                raise DrawingFailed(
                    f"the figures could not be drawn: their process did nothing for {self.silent_s:g} s, and was ended"
                ) from None
            if not more:
                return said.decode(errors="replace").strip()
            said = (said + more)[-READ_BYTES:]


def _why(code: int, said: str) -> str:
    """The end of a process, for people."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"their process was ended by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
    return said.splitlines()[-1] if said else f"their process ended with {code} and did not say why"
