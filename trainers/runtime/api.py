"""Training from Python, without a server: `train(spec)`."""

import math
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.errors import ClusterUnavailable, RunFailed, SpecRejected, TraceRefused
from trainers.events import Event, Result, State
from trainers.runtime.cluster import embedded, needs
from trainers.runtime.code_package import check_own, naming
from trainers.runtime.event_log import FILE_NAME, EventLog, EventLogReader, Fence
from trainers.spec import TrainSpec

if TYPE_CHECKING:
    from trainers.runtime.runs import Run

POLL_S = 0.05


def train(
    spec: TrainSpec,
    run_dir: Path | str | None = None,
    on_event: Callable[[Event], None] | None = None,
    *,
    task: Any = None,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Any] = (),
    trace: int = 0,
) -> Result:
    """Train to the end and return how it went.

    Uses the Ray that this process is connected to, or starts one on this machine for the time of the run. What stands
    in a notebook is given as an object, and sent to the workers by value: the spec then names it `given_to_train:...`.

    Args:
        spec: What to train.
        run_dir: Where log, checkpoints and the finished model go; `runs/<id>` by default.
        on_event: Called with every event of the run's log.
        task: A `Task`, or a subclass, whose constructor takes `task.kwargs` of the spec.
        model: A function or class as `module:function` of a spec would name it, or a module with its initial weights.
        data: A function likewise, or what it would return, or a `ray.data.Dataset`.
        callbacks: `Callback`s beside those of the spec, or subclasses that take no arguments.
        trace: How many steps of the first worker are recorded once it trains; the event `trace` names the file.

    Raises:
        SpecRejected: `run_dir` holds another run already, or the code or an object cannot be sent.
        RunFailed: The run failed; the sentence says why, and the log has the frames.
        ClusterUnavailable: Ray did not start, or ended beneath the run.
        TraceRefused: So many steps are not recorded.
    """
    import ray

    from trainers.runtime.control.onlookers.tracing import check_steps
    from trainers.runtime.runs import cleanup_run, start_run

    job_id = f"run-{uuid.uuid4().hex[:8]}"
    folder = Path(run_dir or Path("runs") / job_id)
    if (folder / FILE_NAME).exists():
        raise SpecRejected(f"run_dir: {folder} holds a run already; name another folder")
    if trace:
        check_steps(trace)
    spec, objects = naming(spec, callbacks, task=task, model=model, data=data)
    spec = spec.resolved(Path.cwd())
    check_own(spec, objects)
    with nullcontext() if ray.is_initialized() else embedded(at_least=math.ceil(needs(spec).cpus)):
        run = start_run(job_id, spec, folder, objects=objects)
        try:
            return _wait(run, folder, on_event, trace)
        except ClusterUnavailable as error:
            cleanup_run(job_id)
            Fence.take(folder)  # the coordinator may live a second longer, and writes no more
            with closing(EventLog(folder)) as log:
                log.append("state", {"state": State.FAILED, "reason": error.reason, "message": str(error)})
            raise


def _wait(run: "Run", folder: Path, on_event: Callable[[Event], None] | None, trace: int) -> Result:
    reader, result, checked_s = EventLogReader(folder), None, time.monotonic()
    while True:
        for event in reader.read():
            if on_event is not None:
                on_event(event)
            if trace and event.type == "step":
                steps, trace = trace, 0
                with suppress(TraceRefused):  # it is over already
                    run.trace(steps)
            if event.type == "result":
                result = Result.model_validate(event.data)
            if event.is_terminal:
                if result is None:
                    raise RunFailed(event.data["message"])
                return result
        if time.monotonic() - checked_s > 1:
            checked_s = time.monotonic()
            if not run.is_alive() and not list(EventLogReader(folder, reader.after).read()):
                raise RunFailed("the run's coordinator died")
        time.sleep(POLL_S)
