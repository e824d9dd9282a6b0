"""Runs with something to look at."""

import json
import math
from typing import Any

from tests.service.fakes import FakeRun
from trainers.events import State

HOSTILE = "<img src=x onerror=\"window.broken = 1; alert('broken')\">"
PLACE = {"node_id": "ab" * 28, "node_ip": "192.0.2.1"}


def train(run: FakeRun, epochs: int, an_epoch: int = 10, slowly: float = 3.0) -> None:
    """Train so far, with everything that a run tells. slowly: Epochs in which the loss falls to 1/e."""
    if run.journal.seq < 3:
        run.state(State.RUNNING, "Training", "two workers train")
        workers = [{"name": f"{run.job_id}/worker/{i}", "pid": 100 + i, "actor_id": f"a{i}", **PLACE} for i in range(2)]
        shard = {"name": f"{run.job_id}/shard/0", "pid": 300, **PLACE}
        run.emit("actors", workers=workers, shards=[shard], coordinator={"name": f"{run.job_id}/coordinator", "pid": 9})
    for i in range(1, epochs * an_epoch + 1):
        epoch = i / an_epoch
        run.emit("step", **step(epoch, i, slowly))
        if i % an_epoch == 0:
            run.evaluation(epoch, 1 - 0.03 - 0.8 * math.exp(-epoch / 2))
            examples = int(epoch * 1000)
            run.emit("checkpoint", path=f"/runs/checkpoints/{examples:012d}", epoch=epoch, examples=examples)
    run.emit("log", level="warning", message=f"{HOSTILE} is what somebody logs")


def step(epoch: float, number: int, slowly: float = 3.0) -> dict[str, Any]:
    """The data of a step."""
    return {
        "step": number, "epoch": epoch, "examples": int(epoch * 1000), "examples_per_s": 500.0 + number,
        "loss": 2.3 * math.exp(-epoch / slowly), "learning_rate": 0.1, "workers": 2, "wait_data_s": 0.0,
        "wait_communication_s": 0.0, "compute_s": 1.0, "staleness": {"0": number, "2": number // 2},
    }  # fmt: skip


def as_stream(events: list[tuple[str, dict[str, Any]]], begin: int = 1) -> str:
    """Events as the service would stream them."""
    told = ""
    for seq, (kind, data) in enumerate(events, begin):
        event = {"seq": seq, "time": 1_795_157_766.0 + seq, "type": kind, "data": data}
        told += f"id: {seq}\nevent: {kind}\ndata: {json.dumps(event)}\n\n"
    return told


def train_on_text(run: FakeRun, epochs: int) -> None:
    """Likewise a language model, whose metrics are others."""
    run.state(State.RUNNING, "Training", "two workers train")
    for i in range(1, 10 * epochs + 1):
        epoch = i / 10
        run.emit("step", **step(epoch, i), gradient_norm=2.0, noise_scale=300.0 + i)
        if i % 10 == 0:
            loss = 1.4 + 2.0 * math.exp(-epoch)
            figures = {"test_loss": loss, "test_perplexity": math.exp(loss), "test_bits_per_byte": loss / math.log(2)}
            run.emit("evaluation", epoch=epoch, examples=int(epoch * 1000), seconds=0.1, headline="loss",
                     higher_is_better=False, **figures)  # fmt: skip
