"""The figures of a report: drawn once for all who ask, again for a later version, by processes that end."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.measurement.recorded_sweep import DONE
from service import DrawingFailed, TooManyInFlight, TrialStore, parse_sweep
from service.sweeps import control
from service.sweeps.reporting.drawings import MOST_WAITING, Drawings
from service.sweeps.trial_store import TrialState

SPEC = parse_sweep({"job": {"workers": 1}, "axes": {"seed": [0, 1]}})
DRAWS = """
import os, pathlib, sys, time
sweep, into = map(pathlib.Path, sys.argv[1:])
with (sweep / "drawn").open("a") as log:
    print(os.getpid(), file=log)
while (sweep / "wait").exists():
    time.sleep(0.01)
(into / "error.png").write_bytes((sweep / "drawn").read_bytes())
"""


def sweep(folder: Path, name: str = "sweep-1") -> TrialStore:
    """A sweep whose trials have ended."""
    store = control.begin(folder / name, name, SPEC)
    end(store)
    return store


def end(store: TrialStore) -> None:
    for row in store.trials():
        store.finish(row.id, DONE, 0.1)
    assert store.close(DONE.status)


def with_drawings(
    folder: Path, scenario: Callable[[Drawings], Coroutine[Any, Any, None]], script: str = DRAWS, **settings: float
) -> None:
    """Play a scenario, and see that no process and no file is left."""

    async def play() -> None:
        drawings = Drawings(folder, **settings)
        drawings.command = (sys.executable, "-c", script)
        await drawings.start()
        try:
            await scenario(drawings)
        finally:
            await drawings.stop()

    asyncio.run(play())
    assert not [child for child in psutil.Process().children() if script in child.cmdline()]
    assert not (folder / ".figures").exists()


def drawn(store: TrialStore) -> list[int]:
    """The processes that have drawn it."""
    log = store.folder / "drawn"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_one_drawing_is_for_all_who_ask_and_is_kept(tmp_path: Path) -> None:
    store = sweep(tmp_path)

    async def scenario(drawings: Drawings) -> None:
        asked = [drawings.file(store, "error.png", user) for user in ("ann", "bob") * 6]
        assert len(set(await asyncio.gather(*asked))) == 1
        assert await drawings.names(store, "ann") == ("error.png",)
        assert len(drawn(store)) == 1
        assert not psutil.pid_exists(drawn(store)[0]), "its process has ended"

    with_drawings(tmp_path, scenario)


def test_a_later_version_is_drawn_anew_and_takes_the_place_of_the_first(tmp_path: Path) -> None:
    store = sweep(tmp_path)

    async def scenario(drawings: Drawings) -> None:
        first = await drawings.file(store, "error.png", "ann")
        control.extend(store, {"seed": [2]}, {})
        end(store)
        assert await drawings.file(store, "error.png", "ann") != first
        assert len(drawn(store)) == 2
        assert len(os.listdir(drawings.folder)) == 1

    with_drawings(tmp_path, scenario)


def test_a_sweep_that_runs_is_not_drawn_at_each_evaluation(tmp_path: Path) -> None:
    store = control.begin(tmp_path / "sweep-1", "sweep-1", SPEC)
    trial = store.trials()[0].id
    store.begin(trial)

    async def scenario(drawings: Drawings) -> None:
        for share in (0.1, 0.2, 0.3):
            store.note(trial, share, 0.5)
            await drawings.names(store, "ann")
        assert len(drawn(store)) == 1

    with_drawings(tmp_path, scenario, fresh_s=3600.0)


def test_two_draw_at_a_time_and_one_of_each_user(tmp_path: Path) -> None:
    stores = [sweep(tmp_path, f"sweep-{n}") for n in range(4)]
    users = ("ann", "ann", "bob", "cyn")
    for store in stores:
        (store.folder / "wait").touch()

    async def scenario(drawings: Drawings) -> None:
        asked = [asyncio.create_task(drawings.names(store, user)) for store, user in zip(stores, users, strict=True)]
        await until(lambda: sum(len(drawn(store)) for store in stores) == 2)
        assert len(drawn(stores[0]) + drawn(stores[1])) <= 1, "one of ann's waits for the other"
        assert len(psutil.Process().children()) >= 2
        for store in stores:
            (store.folder / "wait").unlink()
        assert await asyncio.gather(*asked) == [("error.png",)] * 4

    with_drawings(tmp_path, scenario)


def test_one_user_has_only_so_many_in_flight(tmp_path: Path) -> None:
    stores = [sweep(tmp_path, f"sweep-{n}") for n in range(MOST_WAITING + 1)]

    async def scenario(drawings: Drawings) -> None:
        (stores[0].folder / "wait").touch()
        asked = [asyncio.create_task(drawings.names(store, "ann")) for store in stores[:-1]]
        await until(lambda: drawings.turns.in_flight["ann"] == MOST_WAITING)
        with pytest.raises(TooManyInFlight, match="reports of yours are being drawn"):
            await drawings.names(stores[-1], "ann")
        for task in asked:
            task.cancel()

    with_drawings(tmp_path, scenario)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("raise MemoryError('no room')", "MemoryError: no room"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, perhaps for want of memory"),
        ("import sys; sys.exit(3)", "ended with 3 and did not say why"),
    ],
    ids=["raises", "killed", "silent"],
)
def test_a_drawing_that_dies_says_why_and_the_next_one_is_drawn(tmp_path: Path, script: str, told: str) -> None:
    store = sweep(tmp_path)

    async def scenario(drawings: Drawings) -> None:
        found = await asyncio.gather(*(drawings.names(store, "ann") for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in found] == [DrawingFailed] * 3
        assert told in str(found[0])
        assert os.listdir(drawings.folder) == []
        drawings.command = (sys.executable, "-c", DRAWS)
        assert await drawings.names(store, "ann") == ("error.png",)

    with_drawings(tmp_path, scenario, script)


def test_a_drawing_that_hangs_is_ended(tmp_path: Path) -> None:
    store = sweep(tmp_path)
    (store.folder / "wait").touch()

    async def scenario(drawings: Drawings) -> None:
        with pytest.raises(DrawingFailed, match=r"did nothing for 0\.5 s, and was ended"):
            await drawings.names(store, "ann")
        assert not [pid for pid in drawn(store) if psutil.pid_exists(pid)]

    with_drawings(tmp_path, scenario, silent_s=0.5)


def test_stopping_ends_what_draws(tmp_path: Path) -> None:
    store = sweep(tmp_path)
    (store.folder / "wait").touch()

    async def scenario(drawings: Drawings) -> None:
        asked = asyncio.create_task(drawings.names(store, "ann"))
        await until(lambda: bool(drawn(store)))
        await drawings.stop()
        with pytest.raises(asyncio.CancelledError):
            await asked

    with_drawings(tmp_path, scenario)


def test_the_version_is_that_of_what_is_drawn(tmp_path: Path) -> None:
    store = control.begin(tmp_path / "sweep-1", "sweep-1", SPEC)
    trial = store.trials()[0].id
    versions = [store.version]
    for change in (
        lambda: store.begin(trial),
        lambda: store.note(trial, 0.5, 0.3),
        lambda: store.finish(trial, DONE.model_copy(update={"state": TrialState.FAILED}), 0.2),
        lambda: control.extend(store, {"seed": [7]}, {}),
    ):
        change()
        versions.append(store.version)
    assert len(set(versions)) == len(versions)
    store.use(3.0)
    assert store.version == versions[-1], "seconds are not drawn"
