"""The parts of a step by name, as a trace shows them. While none is recorded, to name one costs two comparisons.

| span | what it is |
|---|---|
| `step` | one step of a worker, from its data to its update; everything below lies in one |
| `data` | getting the minibatches |
| `forward`, `backward` | the two passes through the model, of each minibatch |
| `sums` | gradients travel between workers and are added |
| `gather` | parameters travel that other workers have updated |
| `update` | optimizer, clipping and weight decay; the canonical sum is added in the same pass |
| `waiting` | the thread stands still for another worker or a shard; lies within what waits |
| `fetch`, `push` | parameters from the shards, gradients to them |
| `claim` | a step with backup workers asks whether its gradient comes in time |
| `average`, `consensus` | parameters of the workers are averaged; z and u of ADMM |
| `turn`, `exchange` | a pass of all workers' examples through divided layers; their activities travel, or rows |
| `buffers` | running statistics travel between workers |
| `snapshot` | a version is gathered for an evaluation or a checkpoint, between two steps |
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

Part = Literal[
    "step", "data", "forward", "backward", "sums", "gather", "update", "waiting", "fetch", "push", "claim", "average",
    "consensus", "turn", "exchange", "buffers", "snapshot",
]  # fmt: skip
Recorder = Callable[[str], AbstractContextManager[Any]]

_NOTHING = nullcontext()
_recorder: list[Recorder] = []  # of this process, as the profiler is; empty or one


def span(part: Part) -> AbstractContextManager[Any]:
    """What happens within is that part of a step."""
    return _recorder[0](part) if _recorder else _NOTHING


def record_spans(recorder: Recorder | None) -> None:
    """Have every span of this process recorded from now on; None: no more."""
    _recorder[:] = [] if recorder is None else [recorder]
