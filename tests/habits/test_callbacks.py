"""Callbacks of a user's own: what they see, what they may ask, and what becomes of a run whose callback raises."""

import asyncio
import json
import os
import signal
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from pydantic import ValidationError

from service.errors import SpecInvalid
from service.jobs.own_code import own_code
from service.spec import JobSpec, parse_spec
from service.sweeps.own_code import own_code_of_sweep
from service.sweeps.spec import SweepSpec
from tests.runtime.control.fake_actors import FakeActor, died
from tests.runtime.control.fakes import FakeLog
from tests.runtime.runs import finished, spec
from trainers import Callback, ClusterInfo, Event, RunFailed, SeenEvent, SpecRejected, State, UserCodeFailed, train
from trainers.runtime.actors.callbacks import Delivery, check
from trainers.runtime.control.ending import RunEnd
from trainers.runtime.control.onlookers.callbacks import ATTEMPTS, CallbackCalls
from trainers.runtime.control.run_events import EvaluationAsked, StopsEarly
from trainers.runtime.messages import Delivered
from trainers.spec import CallbackSpec

HERE = __name__


class Seen(Callback):
    """Remembers what it saw, and does what it is told to."""

    def __init__(self, raises: str = "", stops: bool = False) -> None:
        self.raises, self.stops = raises, stops
        self.seen: list[tuple[str, int, bool]] = []

    def on_start(self, event: SeenEvent) -> None:
        self._see("start", event)

    def on_step(self, event: SeenEvent) -> None:
        self._see("step", event)
        if self.stops:
            self.ask_to_stop("enough")
        self.ask_to_evaluate()

    def on_end(self, event: SeenEvent) -> None:
        self._see("end", event)

    def _see(self, what: str, event: SeenEvent) -> None:
        self.seen.append((what, event.seq, event.replayed))
        if what == self.raises:
            raise ValueError("the moon is in the wrong phase")


class Writer(Callback):
    """Writes what it saw into a file, and may end its own process over a step, once."""

    def __init__(self, path: str, dies: bool = False) -> None:
        self.path, self.dies = path, dies
        self.steps = 0

    def on_start(self, event: SeenEvent) -> None:
        self.write("start", event)

    def on_step(self, event: SeenEvent) -> None:
        self.steps += 1
        self.ask_to_evaluate()
        if self.dies and not Path(f"{self.path}.died").exists():
            Path(f"{self.path}.died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.write("step", event)

    def on_evaluation(self, event: SeenEvent) -> None:
        self.write("evaluation", event)
        self.ask_to_stop(f"the loss is {event.data['test_loss']:.3g}")

    def on_end(self, event: SeenEvent) -> None:
        self.write("end", event, state=event.data["state"], result=event.data["result"]["state"], steps=self.steps)

    def write(self, what: str, event: SeenEvent, **more: Any) -> None:
        with Path(self.path).open("a") as file:
            print(json.dumps({"what": what, "seq": event.seq, "replayed": event.replayed, **more}), file=file)


class Broken(Callback):
    def on_end(self, event: SeenEvent) -> None:
        raise ValueError("the moon is in the wrong phase")


def event(seq: int, kind: Any = "step", **data: Any) -> Event:
    return Event(seq=seq, time=0.0, type=kind, data={"loss": 1.0, "staleness": {"0": [1]}} | data)


def running(seq: int) -> Event:
    return event(seq, "state", state=State.RUNNING)


def named(name: str = "Seen", **fields: Any) -> CallbackSpec:
    return CallbackSpec(name=f"{HERE}:{name}", **fields)


# -- the process that calls them --------------------------------------------------------------------------------------


def test_they_see_the_log_in_its_order_and_change_nothing() -> None:
    delivery = Delivery([named(), named(kwargs={"stops": True})], before=2)
    given = [delivery.give(one) for one in (running(1), event(2), event(3, "log"), running(4), event(5))]
    delivery.end(SeenEvent(0, 0.0, "state", {}))
    assert [one.seen for _, one in delivery.callbacks] == [  # type: ignore[attr-defined]
        [("start", 1, True), ("step", 2, True), ("step", 5, False), ("end", 0, False)]
    ] * 2
    stop = f"{HERE}:Seen: enough"
    assert given == [(None, False), (stop, False), (None, False), (None, False), (stop, True)]


def test_what_they_see_cannot_be_changed() -> None:
    delivery = Delivery([named()])
    seen: list[SeenEvent] = []
    delivery.callbacks[0][1].on_step = seen.append  # type: ignore[method-assign]
    delivery.give(event(1))
    with pytest.raises(TypeError):
        seen[0].data["loss"] = 0.0  # type: ignore[index]
    with pytest.raises(TypeError):
        seen[0].data["staleness"]["0"] = ()
    assert seen[0].data["staleness"]["0"] == (1,)


def test_one_that_raises_fails_the_run_or_is_dropped_and_the_others_see_the_event() -> None:
    raising = {"raises": "step"}
    delivery = Delivery([named(kwargs=raising, on_error="drop"), named(kwargs=raising), named()])
    delivery.give(running(1))
    with pytest.raises(
        UserCodeFailed, match=r"(?s)Seen.on_step raised ValueError: the moon .*raise ValueError"
    ) as failed:
        delivery.give(event(2))
    assert "test_callbacks.py" in str(failed.value)
    assert [one.seen for _, one in delivery.callbacks] == [[("start", 1, False), ("step", 2, False)]]  # type: ignore[attr-defined]
    (told,) = delivery.dropped
    assert "the moon" in told
    assert told.endswith("the run goes on without this callback")


@pytest.mark.parametrize(
    ("name", "kwargs", "why"),
    [
        (f"{HERE}:Path", {}, "is no callback; derive it from trainers.Callback"),
        (f"{HERE}:Seen", {"colour": 1}, "does not take these kwargs: .*colour"),
        ("nowhere:Seen", {}, "set `code` in the spec"),
    ],
)
def test_what_is_no_callback_is_refused_before_the_run(name: str, kwargs: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecRejected, match=why):
        check([CallbackSpec(name=name, kwargs=kwargs)])


def test_a_spec_names_them_alone_or_with_more() -> None:
    one, other = spec(callbacks=["m:A", {"name": "m:B", "on_error": "drop"}]).callbacks
    assert (one.name, one.on_error, other.on_error) == ("m:A", "fail", "drop")
    with pytest.raises(ValidationError, match="write module:Class"):
        spec(callbacks=["tensorboard"])
    with pytest.raises(SpecInvalid, match="give train"):
        parse_spec({"callbacks": ["given_to_train:Seen"]})


def test_they_are_code_of_the_callers_own() -> None:
    assert [one.pointer for one in own_code(JobSpec.model_validate({"callbacks": ["m:A"]}))] == ["/callbacks/0/name"]
    sweep = SweepSpec.model_validate({"job": {}, "axes": {"callbacks": [[], ["m:A"]]}})
    assert [one.pointer for one in own_code_of_sweep(sweep)] == ["/axes/callbacks"]


# -- what the coordinator makes of it ---------------------------------------------------------------------------------


def calls(on_error: str = "fail", **answers: Any) -> tuple[CallbackCalls, FakeActor, FakeLog]:
    actor, log = FakeActor(**answers), FakeLog()
    log.run_dir = Path("run")
    pool = SimpleNamespace(
        spec=spec(callbacks=[{"name": "m:A", "on_error": on_error}]),
        start_callbacks=lambda run_dir: (actor, "job/callbacks"),
    )
    return CallbackCalls(pool, log, asyncio.Queue()), actor, log  # type: ignore[arg-type]


def test_what_they_ask_becomes_an_event_of_the_run() -> None:
    async def body() -> None:
        found, _, log = calls(deliver=Delivered(3, "m:A: enough", True, ("it raised",)))
        following = asyncio.ensure_future(found.follow())
        assert await found.events.get() == StopsEarly("m:A: enough")
        assert await found.events.get() == EvaluationAsked()
        following.cancel()
        assert log.of("log")[0] == {"level": "warning", "message": "it raised"}

    asyncio.run(body())


@pytest.mark.parametrize("on_error", ["fail", "drop"])
def test_a_process_that_dies_again_and_again(on_error: str) -> None:
    async def body() -> None:
        found, _, log = calls(on_error, deliver=died())
        if on_error == "fail":
            with pytest.raises(RunFailed, match="memory"):
                await found.follow()
        else:
            await found.follow()
            assert "goes on without them" in log.of("log")[0]["message"]
        assert len(log.of("fault")) == ATTEMPTS

    asyncio.run(body())


@pytest.fixture
def without_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "kill", lambda actor: None)


SUCCEEDED = RunEnd(State.SUCCEEDED, "Succeeded", "trained 1 epoch")


@pytest.mark.usefixtures("without_kills")
def test_a_run_that_is_over_before_their_process_is_there_is_told_them_from_its_beginning() -> None:
    async def body() -> None:
        found, actor, _ = calls(prepare=lambda: None, deliver=deque([Delivered(3), Delivered()]), end=Delivered())
        following = asyncio.ensure_future(found.follow())
        await asyncio.sleep(0)  # it begins to start the process, and the run ends
        following.cancel()
        assert await found.finish(SUCCEEDED, SUCCEEDED, None) == SUCCEEDED
        assert [name for name, _ in actor.calls] == ["prepare", "deliver", "deliver", "end"]

    asyncio.run(body())


@pytest.mark.usefixtures("without_kills")
def test_what_was_written_since_they_were_asked_last_is_given_before_the_end() -> None:
    async def body() -> None:
        found, actor, _ = calls(deliver=deque([Delivered(), Delivered(9), Delivered()]), end=Delivered())
        following = asyncio.ensure_future(found.follow())
        while len(actor.calls) < 2 or found.under_way is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        # It waits until it looks again, and the run ends.
        following.cancel()
        await found.finish(SUCCEEDED, SUCCEEDED, None)
        assert [name for name, _ in actor.calls] == ["prepare", *["deliver"] * 3, "end"]

    asyncio.run(body())


@pytest.mark.usefixtures("without_kills")
def test_one_that_cannot_be_made_fails_a_run_that_is_over_already() -> None:
    async def body() -> None:
        error = UserCodeFailed("m:A raised ValueError")
        found, _, log = calls(prepare=ray.exceptions.RayTaskError("prepare", str(error), error))
        following = asyncio.ensure_future(found.follow())
        await asyncio.sleep(0)
        following.cancel()
        end = await found.finish(SUCCEEDED, SUCCEEDED, None)
        assert (end.state, end.reason) == (State.FAILED, "UserCodeFailed")
        assert log.of("log")

    asyncio.run(body())


# -- on Ray -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_run_with_callbacks_one_of_which_dies_and_asks(cluster: ClusterInfo, tmp_path: Path) -> None:
    told = tmp_path / "told"
    fields = {"epochs": 1000, "evaluate": {"every_epochs": 0}, "report_every_s": 0.05}
    result = train(spec(**fields), tmp_path / "run", callbacks=[Writer(str(told), dies=True)])
    seen = [json.loads(line) for line in told.read_text().splitlines()]
    assert result.state is State.SUCCEEDED
    assert result.epochs < 1000  # it asked for an evaluation, and then to stop
    assert [one["what"] for one in seen[:2]] == ["start", "start"]  # once more in another process
    assert (seen[0]["replayed"], seen[1]["replayed"], seen[2]["replayed"]) == (False, True, False)
    assert (seen[-1]["what"], seen[-1]["state"], seen[-1]["result"]) == ("end", "SUCCEEDED", "SUCCEEDED")
    events = [Event.model_validate_json(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [one["seq"] for one in seen if one["what"] == "step"] == [one.seq for one in events if one.type == "step"]
    assert seen[-1]["steps"] == len([one for one in events if one.type == "step"])
    assert "Writer: the loss is" in events[-1].data["message"]
    (fault,) = [one.data["actor"] for one in events if one.type == "fault"]
    assert "/callbacks" in fault
    names = {one["name"] for one in ray.util.list_named_actors(all_namespaces=True)}
    assert not any("/callbacks" in name for name in names)


@pytest.mark.long
def test_a_short_run_is_told_whole_and_what_is_no_callback_is_found_before_it_trains(
    cluster: ClusterInfo, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    train(spec(epochs=1, max_steps=2), tmp_path / "run", callbacks=[Writer(str(told))])
    assert [json.loads(line)["what"] for line in told.read_text().splitlines()][:1] == ["start"]
    assert json.loads(told.read_text().splitlines()[-1])["what"] == "end"
    with pytest.raises(RunFailed, match="has no function 'Writr'; did you mean Writer"):
        train(spec(callbacks=[f"{HERE}:Writr"]), tmp_path / "wrong")
    assert '"type":"step"' not in (tmp_path / "wrong" / "events.jsonl").read_text()


@pytest.mark.long
def test_one_that_raises_at_the_end_fails_a_run_that_had_succeeded(cluster: ClusterInfo, tmp_path: Path) -> None:
    """The others are those of the example, whose code travels."""
    watching = ["watching:Tell", {"name": "watching:GoodEnough", "kwargs": {"loss": 1.5}}]
    code = str(Path(__file__).parents[2] / "examples/callbacks")
    train_spec = spec(code=code, callbacks=[f"{HERE}:Broken", *watching], epochs=200)
    watched = finished("raises-at-the-end", train_spec, tmp_path / "run")
    assert not watched.of("result")
    assert any("GoodEnough: the loss is below 1.5" in line["message"] for line in watched.of("log"))
    assert watched.events[-1].data["state"] == "FAILED"
    assert watched.events[-1].data["reason"] == "UserCodeFailed"
    assert any("raise ValueError" in line["message"] for line in watched.of("log"))
