"""The actor that calls a run's callbacks. It reads the run's log, so that however long they take, nobody waits."""

import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from trainers import user_code
from trainers.callback import Callback, SeenEvent, frozen
from trainers.errors import SpecRejected, UserCodeFailed
from trainers.events import Event, State
from trainers.runtime.actors.base import BaseActor, limit_threads, use_code
from trainers.runtime.event_log import EventLogReader
from trainers.runtime.messages import Delivered
from trainers.spec import TrainSpec
from trainers.spec.callbacks import CallbackSpec

POSITION = ".callbacks"
"""The file in the run's folder that holds the number of the last event that all callbacks were given."""
BATCH = 200
"""Events after which the coordinator hears how far it is."""
HOOKS = {"step": "on_step", "evaluation": "on_evaluation", "checkpoint": "on_checkpoint"}

log = logging.getLogger(__name__)


class Delivery:
    """Gives callbacks one event after the other."""

    def __init__(self, specs: Sequence[CallbackSpec], before: int = 0) -> None:
        """before: The number of the last event that an earlier process has given them.

        Raises:
            UserCodeFailed: One cannot be made, or is no callback.
        """
        self.callbacks = [(one, built(one)) for one in specs]
        self.before = before
        self.has_begun = False
        self.dropped: list[str] = []

    def give(self, event: Event) -> tuple[str | None, bool]:
        """Give all of them an event. Returns why one asked to stop, and whether one asked to evaluate.

        Raises:
            UserCodeFailed: One has raised with which the run is to fail; the others have seen the event.
        """
        hook = HOOKS.get(event.type)
        if event.type == "state" and event.data["state"] == State.RUNNING and not self.has_begun:
            hook, self.has_begun = "on_start", True
        if hook is None:
            return None, False
        replayed = event.seq <= self.before
        self._call(hook, SeenEvent(event.seq, event.time, event.type, frozen(event.data), replayed))
        whys, wants = list[str](), False
        for one, callback in self.callbacks:
            why, evaluates = callback.asked()
            whys += [f"{one.name}: {why}"] if why is not None else []
            wants |= evaluates and not replayed
        return (whys[0] if whys else None), wants

    def end(self, event: SeenEvent) -> None:
        """Give them the end of the run, if they saw it begin. Raises UserCodeFailed as `give`."""
        if self.has_begun:
            self._call("on_end", event)

    def _call(self, hook: str, event: SeenEvent) -> None:
        failure: UserCodeFailed | None = None
        for one, callback in list(self.callbacks):
            try:
                getattr(callback, hook)(event)
            except (Exception, SystemExit) as error:
                self.callbacks.remove((one, callback))
                found = user_code.failed(f"{one.name}.{hook}", error)
                if one.on_error == "fail":
                    failure = failure or found
                else:
                    self.dropped.append(f"{found}\nthe run goes on without this callback")
        if failure is not None:
            raise failure


class CallbackActor(BaseActor):
    """Beside the coordinator, whose node has the run's folder."""

    def __init__(
        self, name: str, job_id: str, spec: TrainSpec, run_dir: Path, *, coordinator_name: str | None = None
    ) -> None:
        super().__init__(name, job_id, coordinator_name)
        self.spec = spec
        self.reader = EventLogReader(run_dir)
        self.position = run_dir / POSITION
        self.delivery: Delivery  # from `prepare` on

    def prepare(self) -> None:
        """Make the callbacks. Raises UserCodeFailed where one cannot be made."""
        use_code(self.spec.code is not None)
        limit_threads(self.spec.workers.threads)
        before = int(self.position.read_text()) if self.position.exists() else 0
        self.delivery = Delivery(self.spec.callbacks, before)

    def deliver(self) -> Delivered:
        """Give the callbacks what is new in the log, up to the first event over which one asks something."""
        seq, stop, evaluate = 0, None, False
        for event in islice(self.reader.read(), BATCH):
            stop, evaluate = self._give(event)
            seq = event.seq
            if stop is not None or evaluate:
                break
        return Delivered(seq, stop, evaluate, self._told(), self.printing.take())

    def end(self, data: Mapping[str, Any], when: float) -> Delivered:
        """Give the callbacks the end of the run. when: By the coordinator's clock."""
        self.delivery.end(SeenEvent(0, when, "state", frozen(data)))
        return Delivered(dropped=self._told(), printed=self.printing.take())

    def _give(self, event: Event) -> tuple[str | None, bool]:
        found = self.delivery.give(event)
        if event.seq > self.delivery.before:
            part = self.position.with_name(f"{POSITION}.{os.getpid()}")
            with suppress(OSError):  # on a full disk, the next process gives it once more
                part.write_text(str(event.seq))
                part.rename(self.position)
        return found

    def _told(self) -> tuple[str, ...]:
        told, self.delivery.dropped = tuple(self.delivery.dropped), []
        return told


def built(one: CallbackSpec) -> Callback:
    """The callback. Raises UserCodeFailed where it cannot be made, or is none."""
    found = user_code.call(one.name, **one.kwargs)
    if not isinstance(found, Callback):
        raise UserCodeFailed(f"{one.name} gives a {type(found).__name__}; derive it from trainers.Callback")
    return found


def check(specs: Sequence[CallbackSpec]) -> None:
    """Look at the callbacks without making them, which may have effects. Raises SpecRejected."""
    for one in specs:
        found = user_code.resolve(one.name)
        if isinstance(found, type) and not issubclass(found, Callback):
            raise SpecRejected(f"callbacks: {one.name} is no callback; derive it from trainers.Callback")
        try:
            inspect.signature(found).bind(**one.kwargs)
        except TypeError as error:
            raise SpecRejected(f"callbacks: {one.name} does not take these kwargs: {error}") from None
