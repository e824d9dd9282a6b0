"""The scaling reports of sweeps: each version of a sweep is reported on once, by one thread for all of them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from service.scaling.report import ScalingReport, scaling_report
from service.sweeps.trial_store import TrialStore
from service.sweeps.views import evidence

KEPT = 8
"""Reports in memory, of some hundred kilobytes each."""


class Known(NamedTuple):
    """The report of one version of a sweep."""

    version: str
    report: ScalingReport


class Reports:
    """The last reports of one service's sweeps."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="reports")
        self.known: dict[str, Known] = {}

    def close(self) -> None:
        """Begin nothing more."""
        self.thread.shutdown(wait=False, cancel_futures=True)

    async def of(self, store: TrialStore) -> ScalingReport:
        """What a sweep's trials have shown so far. Who asks for the same while it is made gets the same."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, self._of, store)

    def _of(self, store: TrialStore) -> ScalingReport:
        version, known = store.version, self.known.pop(store.folder.name, None)
        if known is None or known.version != version:
            known = Known(version, scaling_report(evidence(store)))
        self.known[store.folder.name] = known
        if len(self.known) > KEPT:
            del self.known[next(iter(self.known))]
        return known.report
