"""Records the next steps of one worker with PyTorch's profiler, on request, while it trains.

It begins and ends between two steps. What a run computes is the same with and without it.
"""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.spans import record_spans
from trainers.training.chrome_trace import Recording, chrome_trace
from trainers.training.messages import Traced

if TYPE_CHECKING:
    import torch


class StepTracer:
    """Of one worker. Its training thread calls `turn`, `count` and `leave`, other threads the rest."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.asked = 0  # steps that are to be recorded; 0: nothing is to do on the training thread
        self.recorded = 0
        self.is_over = True
        self.why = ""  # it was over early, in a sentence without its end
        self.profile: torch.profiler.profile | None = None  # from its first step on, until it is looked at
        self.thread = 0
        self.uses_gpu = False

    def begin(self, steps: int, uses_gpu: bool) -> None:
        """Record the next steps from the next one on. What was recorded before is gone."""
        import torch.profiler  # noqa: F401  # here, where no step waits for it

        with self.changed:
            self._stop()
            self.profile, self.recorded, self.is_over, self.why = None, 0, False, ""
            self.uses_gpu = uses_gpu
            self.asked = steps

    def give_up(self, why: str) -> None:
        """Record no further step; one that is being recorded is left out."""
        with self.changed:
            if not self.is_over:
                self._finish(why)

    def look(self, within_s: float, label: str) -> Traced:
        """How far it is; answered at once when it is over, and within so many seconds. label: Of the trace."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_over, within_s)
            found = Traced(self.recorded, self.is_over, why=self.why)
            if not self.is_over:
                return found
            profile, thread, self.profile = self.profile, self.thread, None
        if profile is None or not found.steps:
            return found
        names = {one.native_id: one.name for one in threading.enumerate() if one.native_id is not None}
        recording = Recording(label, found.steps, thread, names | {thread: "training"})
        steps, file = chrome_trace(_exported(profile), recording)
        return Traced(steps, True, file, found.why)

    # -- the training thread --------------------------------------------------------------------------------------

    def turn(self) -> None:
        """A step is about to begin: record it, if that was asked for."""
        if self.asked and self.profile is None:
            with self.changed:
                if self.asked and self.profile is None:
                    self._start()

    def count(self) -> None:
        """A step is over."""
        if self.asked and self.profile is not None:
            with self.changed:
                if not self.asked:
                    return
                self.recorded += 1
                if self.recorded == self.asked:
                    self._finish("")
                self.changed.notify_all()

    def leave(self, why: str) -> None:
        """This thread trains no more for now. What was asked for and has not begun is begun when it goes on."""
        if self.asked and self.profile is not None:
            self.give_up(why)

    def _start(self) -> None:
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity, profile, record_function

        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.uses_gpu else [])]
        # All threads: pipelined passes and bucketed sums have some of their own. No Python objects of its events.
        config = _ExperimentalConfig(profile_all_threads=True, trace_only=True)
        self.thread = threading.get_native_id()
        self.profile = profile(activities=kinds, experimental_config=config)
        try:
            self.profile.start()
        except RuntimeError as error:
            self.profile = None
            self._finish(f"PyTorch's profiler does not start in this worker ({error}); does its own code use it?")
            return
        record_spans(record_function)

    def _finish(self, why: str) -> None:
        self._stop()
        self.is_over, self.why = True, why
        self.changed.notify_all()

    def _stop(self) -> None:
        if self.asked and self.profile is not None:
            record_spans(None)
            self.profile.stop()
        self.asked = 0


def _exported(profile: torch.profiler.profile) -> dict[str, object]:
    """All that the profiler has recorded, as Chrome's trace viewer reads it."""
    with tempfile.TemporaryDirectory(prefix="millrace-trace-") as folder:
        file = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(file))
        found: dict[str, object] = json.loads(file.read_bytes())
    return found
