"""The reports of sweeps: each version of a sweep is reported on once, by one thread for all of them."""

import asyncio
import logging
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from service.errors import DrawingFailed
from service.sweeps.reporting.any_report import AnyReport, report_of
from service.sweeps.reporting.drawings import FRESH_S, SILENT_S
from service.sweeps.trial_store import TrialStore
from service.tuning.importance import LEAST
from service.tuning.report import TuningReport

KEPT = 8
"""Reports in memory, of some hundred kilobytes each."""
COMMAND = (sys.executable, "-P", "-m", "service.sweeps.reporting.tell")

logger = logging.getLogger(__name__)


class Known(NamedTuple):
    """The report of one version of a sweep."""

    version: str
    report: AnyReport
    made_s: float

    def is_of(self, store: TrialStore, version: str) -> bool:
        """Whether it still is the report of the sweep: a tuning report, which takes seconds, for a while also of one
        that still runs."""
        still_runs = isinstance(self.report, TuningReport) and not store.state.is_terminal
        return self.version == version or (still_runs and time.monotonic() - self.made_s < FRESH_S)


class Reports:
    """The last reports of one service's sweeps."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="reports")
        self.known: dict[str, Known] = {}

    def close(self) -> None:
        """Begin nothing more."""
        self.thread.shutdown(wait=False, cancel_futures=True)

    async def of(self, store: TrialStore) -> AnyReport:
        """What a sweep's trials have shown so far. Who asks for the same while it is made gets the same. Raises
        DrawingFailed."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, self._of, store)

    def _of(self, store: TrialStore) -> AnyReport:
        version, known = store.version, self.known.pop(store.folder.name, None)
        if known is None or not known.is_of(store, version):
            num_ended = sum(one.state.has_ended for one in store.progress())
            report = _told(store) if num_ended >= LEAST and not store.spec.varies_batch else report_of(store)[0]
            known = Known(version, report, time.monotonic())
        self.known[store.folder.name] = known
        if len(self.known) > KEPT:
            del self.known[next(iter(self.known))]
        return known.report


def _told(store: TrialStore) -> TuningReport:
    """A tuning report with the importance of its axes, by a process that ends."""
    command = [*COMMAND, str(store.folder)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SILENT_S, check=True, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise DrawingFailed(f"the report could not be made: it took more than {SILENT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        logger.error("the report of %s could not be made:\n%s", store.folder.name, said)
        why = said.splitlines()[-1] if said else f"its process ended with {error.returncode}"
        raise DrawingFailed(f"the report could not be made: {why}") from None
    return TuningReport.model_validate_json(done.stdout)
