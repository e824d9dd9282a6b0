"""Processes that read minibatches ahead: a DataLoader that serves one plan after the other."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data._utils import signal_handling

from trainers.data.batches import Data, Plan, Skipped
from trainers.data.draws import Int64Array
from trainers.data.loading.files import begin_files, end_files, is_running
from trainers.errors import MillraceError, RunFailed

PREFETCH = 4
"""Minibatches that each process prepares in advance."""

PARENT_LOOK_S = 1.0


@dataclass(frozen=True, eq=False)
class Loaded:
    """A minibatch as a loader process gives it."""

    data: Data
    """On the CPU; None where it has no examples."""
    epoch: int
    examples: Int64Array  # (B,)
    skipped: tuple[Skipped, ...] = ()


Loads = TorchDataset[Loaded | MillraceError]
"""An index is an item of the plan, an element its minibatch, or the error with which it failed: as a value, an error
keeps its message between processes."""


class PlanLoader:
    """A DataLoader whose processes serve one plan after the other; a new plan discards prefetched minibatches."""

    def __init__(self, examples: Loads, processes: int, seed: int) -> None:
        """processes: how many; 0: the calling thread reads. seed: of whatever no example seeds."""
        self._plan = _PlanSampler()
        options: dict[str, Any] = {}
        self._has_files = processes > 0
        if processes:
            begin_files()
            # Forked from a process that has imported torch for all of them, but never from the calling one, which has
            # threads (Ray's and torch's), whose locks a fork would copy.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["trainers.data.streamed"])
            options = {"multiprocessing_context": context, "persistent_workers": True, "prefetch_factor": PREFETCH}
            options |= {"worker_init_fn": partial(_end_with_parent, os.getpid())}
        self._loader: DataLoader[Any] | None = DataLoader(
            examples,
            sampler=self._plan,
            batch_size=None,  # an element is a minibatch already
            collate_fn=_identity,
            num_workers=processes,
            generator=torch.Generator().manual_seed(seed),  # else DataLoader draws from torch's global generator
            **options,
        )
        self._running: Iterator[Loaded | MillraceError] | None = None
        self._num_plans = 0

    def run(self, plan: Plan) -> Iterator[Loaded]:
        """The minibatches of a plan, in its order. Raises the error of an example that cannot be read."""
        assert self._loader is not None, "a minibatch was asked of a dataset after close()"
        self._plan.items = plan
        self._running = iter(self._loader)
        number = self._num_plans = self._num_plans + 1
        while True:
            assert self._running is not None, "a minibatch was asked of a dataset after close()"
            assert number == self._num_plans, "a minibatch was asked of a plan after another plan had begun"
            try:
                loaded = next(self._running)
            except StopIteration:
                return
            except (RuntimeError, ConnectionError, EOFError) as error:
                # torch has no error class for a loader process that was killed. If its sockets close before torch
                # notices its death, the error is that of receiving its tensors.
                if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                    raise
                raise RunFailed(f"a data loading process ended ({error}); is there memory for it?") from error
            if isinstance(loaded, MillraceError):
                raise loaded
            yield loaded

    def close(self) -> None:
        """End the processes."""
        # Torch does so when the iterator is deleted; but where a loader has failed, the error's traceback still has it.
        shut_down = getattr(self._running, "_shutdown_workers", None)
        if shut_down is not None:
            _give_up_if_one_died(self._running)
            shut_down()
        self._loader = None
        self._running = None
        self._plan.items = ()
        if self._has_files:
            self._has_files = False
            end_files()


def _give_up_if_one_died(running: Any) -> None:
    """Kill the processes of torch's iterator if one of them has died, so that its own shut-down has nothing to do: that
    would wait for ever for a lock with which the dead one may have died."""
    if running._shutdown or all(process.is_alive() for process in running._workers):
        return
    running._shutdown = True
    if running._worker_pids_set:  # else torch's handler of their deaths would raise an error
        signal_handling._remove_worker_pids(id(running))  # type: ignore[attr-defined]
        running._worker_pids_set = False
    for process in running._workers:
        process.kill()
        process.join()
    for queue in running._index_queues:
        queue.cancel_join_thread()
        queue.close()


class _PlanSampler(Sampler[Any]):
    """Hands out the items of the current plan."""

    def __init__(self) -> None:
        self.items: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def _end_with_parent(parent: int, _: int) -> None:
    """Have this loader process end when the process that it loads for has, if only while this one was starting: torch
    looks only for the process that forked it, between two minibatches, and from here on. It runs on any core that the
    parent may use, also where the thread that started it keeps to some (`workers.bind`)."""
    if hasattr(os, "sched_setaffinity"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(0, os.sched_getaffinity(parent))

    def watch() -> None:
        while is_running(parent):
            time.sleep(PARENT_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _identity(loaded: Any) -> Any:
    return loaded
