"""The predicted rate of a run, held against what was measured when the run ends.

A run predicts by a profile that is kept, when all is trained: nothing is imported, started or measured for it before.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainers.errors import Fenced
from trainers.events import Event
from trainers.prediction import PARTS, Comparison, PartOff, Prediction, profiles_folder
from trainers.runtime.control.config import RunConfig
from trainers.runtime.control.ending import cause_of
from trainers.runtime.control.run_log import RunLog
from trainers.runtime.event_log import EventLogReader
from trainers.spec import TrainSpec

if TYPE_CHECKING:
    from trainers.cost.kept import KeptProfile

T = TypeVar("T")
TIMED_WITHIN_S = 300.0
"""For a GPU to be free, the data to be opened and 20 steps; a run does not wait for longer."""
PREDICTED_WITHIN_S = 60.0
"""For a process to start and plan, while the last model is evaluated."""


class Predictions:
    """That of one run. A sweep's trial predicts nothing: others share its processors."""

    def __init__(self, config: RunConfig, log: RunLog) -> None:
        self.config = config
        self.log = log
        self.found: Comparison | None = None

    async def prepare(self, is_first: bool) -> None:
        """Where the spec asks for a profile and none is kept, make one before the workers take the processors.

        is_first: Whether the run has not trained yet.
        """
        if not is_first or self.config.is_trial or self.config.spec.predict != "timed":
            return
        with self._dispensable("no profile was made"):
            if await asyncio.to_thread(_kept, self.config.spec) is None:
                self.log.line("info", "times 20 steps of one worker, for a prediction of the rate")
                await self._once(_timed, self.config.spec, gpus=self.config.spec.workers.gpus, within_s=TIMED_WITHIN_S)

    async def compare(self) -> None:
        """Once all is trained; `found` stays None where there is nothing to compare."""
        if self.config.is_trial or not any(profiles_folder().glob("*.json")):
            return
        with self._dispensable("no rate is predicted"):
            kept = await asyncio.to_thread(_kept, self.config.spec)
            if kept is not None:
                predicted = await self._once(_predicted, self.config.spec, kept, within_s=PREDICTED_WITHIN_S)
                events = await asyncio.to_thread(list, EventLogReader(self.config.run_dir).read())
                self.found = compare(events, predicted, ray.get_runtime_context().get_node_id())

    @contextmanager
    def _dispensable(self, what: str) -> Iterator[None]:
        """The run goes on without it, and its log says why."""
        try:
            yield
        except Fenced:
            raise
        except Exception as error:
            self.log.line("warning", f"{what}: {str(cause_of(error)) or type(error).__name__}")

    async def _once(self, task: Callable[..., T], *arguments: Any, gpus: float = 0, within_s: float) -> T:
        """What a process on the coordinator's node returns that ends with it, and with this."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        once = ray.remote(
            num_cpus=0, num_gpus=gpus, max_retries=0, max_calls=1, runtime_env=self.config.runtime_env,
            scheduling_strategy=here,
        )(task)  # fmt: skip
        running = once.remote(*arguments)
        try:
            found: T = await asyncio.wait_for(running, within_s)
        except (asyncio.CancelledError, TimeoutError):
            ray.cancel(running, force=True)
            raise
        return found


def compare(events: Sequence[Event], predicted: Prediction, node: str) -> Comparison | None:
    """A prediction against what as many workers, all on this node, have reported; None where they have not.

    The first report only begins the time, also after a state in which nobody trained.
    """
    last, workers, seconds, examples = None, 0, 0.0, 0
    spent = dict.fromkeys(PARTS, 0.0)
    for event in events:
        match event.type:
            case "actors":
                workers, last = len(event.data["workers"]), None
                if any(place["node_id"] != node for place in event.data["workers"]):
                    return None  # the profile tells nothing of links between nodes
            case "resize":
                workers, last = event.data["workers"], None
            case "state":
                last = None
            case "step":
                if last is not None and workers == predicted.workers:
                    seconds += event.time - last.time
                    examples += event.data["examples"] - last.data["examples"]
                    for name, counter in PARTS.items():
                        spent[name] += event.data[counter]
                last = event
            case _:
                pass
    if examples <= 0 or seconds <= 0:
        return None
    parts = {
        name: PartOff(predicted_s=predicted.parts[name], measured_s=total / examples) for name, total in spent.items()
    }
    measured = examples / seconds
    return Comparison(
        workers=predicted.workers,
        basis=predicted.basis,
        predicted_per_s=predicted.examples_per_s,
        measured_per_s=measured,
        off=predicted.examples_per_s / measured - 1,
        parts=parts,
        furthest_off=max(parts, key=lambda name: abs(parts[name].measured_s - parts[name].predicted_s)),
    )


# The cost model is imported late: a run that predicts nothing never loads it.


def _kept(spec: TrainSpec) -> "KeptProfile | None":
    from trainers.cost.kept import kept_profile

    return kept_profile(spec)


def _predicted(spec: TrainSpec, kept: "KeptProfile") -> Prediction:
    from trainers.cost.predicting import predict
    from trainers.runtime.actors.base import use_code

    use_code(spec.code is not None)
    return predict(spec, kept)


def _timed(spec: TrainSpec) -> None:
    from trainers.cost.kept import keep_profile
    from trainers.cost.profiles.step_timing import profile_step
    from trainers.runtime.actors.base import use_code

    use_code(spec.code is not None)
    keep_profile(spec, profile_step(spec))
