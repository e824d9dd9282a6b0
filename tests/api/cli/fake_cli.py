"""`millrace` on fake runs, to test what a terminal shows: `python -m tests.api.cli.fake_cli SCRIPT ARGUMENTS...`."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from api import CliContext, build
from deploy.settings import Settings
from deploy.tokens import opened_tokens
from service import ClusterInfo, Resources
from tests.service.fakes import FakeRun, FakeRuns, whole_run
from trainers.events import State


def failing(run: FakeRun) -> None:
    """A run whose loss becomes NaN."""
    run.state(State.RUNNING)
    run.step(1.0)
    run.state(State.FAILED, "LossNotFinite", "the loss became NaN at step 12, learning rate 0.1")


def polite(run: FakeRun) -> None:
    """A run that waits until it is told to stop, and then does."""
    run.state(State.RUNNING)
    run.cancel = lambda: run.state(State.CANCELLED, "Cancelled", "checkpoint written")  # type: ignore[method-assign]


def stubborn(run: FakeRun) -> None:
    """A run that never stops."""
    run.state(State.RUNNING)


SCRIPTS: dict[str, Callable[[FakeRun], None]] = {
    script.__name__: script for script in (whole_run, failing, polite, stubborn)
}


def cli_context(runs: FakeRuns, runs_dir: Path, server: str = "http://127.0.0.1:9", **others: Any) -> CliContext:
    """A command line around fake runs."""

    @contextlib.contextmanager
    def cluster(
        address: str | None, needs: Resources, num_cpus: int | None, dashboard: bool = True
    ) -> Iterator[ClusterInfo]:
        url = "http://127.0.0.1:8265" if address or dashboard else ""
        yield ClusterInfo(address or "192.0.2.1:6379", url)

    def refuse(*_: object) -> None:
        raise AssertionError("nothing here serves")

    state_dir = runs_dir.parent / "state"
    given = {"cluster": cluster, "tokens": partial(opened_tokens, Settings(database=""))} | others
    return CliContext(server, "127.0.0.1", 8466, state_dir, runs_dir, refuse, refuse, lambda: runs, **given)


if __name__ == "__main__":
    fake_runs = FakeRuns(script=SCRIPTS[sys.argv.pop(1)])
    try:
        build(cli_context(fake_runs, Path("runs")))()
    finally:
        print("swept", len(fake_runs.swept), file=sys.stderr)
        fake_runs.close()
