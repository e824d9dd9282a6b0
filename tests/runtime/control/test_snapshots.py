"""Versions on their way to the evaluator, where there is no room for what it writes."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from tests.runtime.control.fake_actors import FakeActor
from tests.runtime.control.fakes import FakeLog, prepared
from tests.runtime.runs import spec
from trainers.errors import DiskFull, RunFailed
from trainers.runtime.control import snapshots as module
from trainers.runtime.control.snapshots import Snapshot, Snapshots
from trainers.training.position import Position

MEASURED = ({"loss": 0.5, "accuracy": 0.9}, 0.1)  # and seconds


def snapshots(run_dir: Path, evaluator: FakeActor, **fields: Any) -> tuple[Snapshots, FakeLog]:
    log, pool = FakeLog(), SimpleNamespace(start_evaluator=lambda: evaluator)
    found = Snapshots(pool, spec(**fields), run_dir, log, print)  # type: ignore[arg-type]
    found.begin(prepared(0))
    return found, log


def after(epoch: int, is_last: bool = False) -> Snapshot:
    return Snapshot([], [], Position(epoch=epoch, examples=100 * epoch), is_last=is_last)


def full(what: str) -> DiskFull:
    return DiskFull(f"there is no room for {what}")


def test_a_run_goes_on_without_a_checkpoint(tmp_path: Path) -> None:
    evaluator = FakeActor(evaluate=MEASURED, save=full("the checkpoint x"))
    found, log = snapshots(tmp_path, evaluator)
    for written, sentence in ((None, "there is no checkpoint"), ("000000000100", "checkpoints/000000000100 is whole")):
        if written is not None:
            (tmp_path / "checkpoints" / written).mkdir(parents=True)
        asyncio.run(found._work(after(1)))
        message = log.of("log")[-1]["message"]
        assert message.startswith("there is no room for the checkpoint x; the run goes on, and ")
        assert message.endswith(sentence)
    assert not log.of("checkpoint")
    assert not found.is_busy


def test_a_run_that_has_trained_everything_needs_only_its_model(tmp_path: Path) -> None:
    evaluator = FakeActor(evaluate=MEASURED, save=full("the checkpoint x"))
    found, log = snapshots(tmp_path, evaluator)
    measured = asyncio.run(found.finish(after(2, is_last=True), is_complete=True))
    assert measured.metrics["accuracy"] == 0.9
    assert evaluator.called("export")
    assert [line["level"] for line in log.of("log")] == ["warning"]


@pytest.mark.parametrize(("is_complete", "method"), [(True, "export"), (False, "save")])
def test_what_a_run_cannot_do_without_ends_it(tmp_path: Path, is_complete: bool, method: str) -> None:
    evaluator = FakeActor(evaluate=MEASURED, **{method: full("it")})
    found, _ = snapshots(tmp_path, evaluator)
    with pytest.raises(
        DiskFull, match=r"there is no room for it; there is no checkpoint; make room before the next at"
    ):
        asyncio.run(found.finish(after(2, is_last=True), is_complete))


class Pool:
    """Evaluators that all die, each on the next of these nodes."""

    job_id = "run"

    def __init__(self, nodes: list[str], why: str = "died") -> None:
        self.nodes, self.why = nodes, why

    def start_evaluator(self) -> FakeActor:
        return FakeActor(evaluate=ray.exceptions.ActorDiedError())

    def forget_evaluator(self) -> tuple[str, str]:
        return self.nodes.pop(0), self.why


def test_an_evaluator_that_dies_with_its_node_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def died_with(node: str) -> bool:
        return node == "gone"

    monkeypatch.setattr(module, "died_with", died_with)
    pool, log = Pool(["gone", "here", "gone", "gone", "here", "here", "here"]), FakeLog()
    found = Snapshots(pool, spec(), tmp_path, log, print)  # type: ignore[arg-type]
    found.begin(prepared(0))
    with pytest.raises(RunFailed, match="lost 3 times over one version: it died; is there memory enough"):
        asyncio.run(found.finish(after(1, is_last=True), is_complete=True))
    assert pool.nodes == ["here"]


def test_an_evaluator_that_hangs_does_not_count_as_short_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def died_with(node: str) -> bool:
        return False

    monkeypatch.setattr(module, "died_with", died_with)
    why = "did not read example 5 of the dataset within 300 s"
    found = Snapshots(Pool(["here"] * 3, why), spec(), tmp_path, log := FakeLog(), print)  # type: ignore[arg-type]
    found.begin(prepared(0))
    with pytest.raises(RunFailed, match=f"lost 3 times over one version: it {why}$"):
        asyncio.run(found.finish(after(1, is_last=True), is_complete=True))
    assert [fault["why"] for fault in log.of("fault")] == [why] * 3
