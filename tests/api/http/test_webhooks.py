"""Webhooks over real HTTP: each state once, signed, tried again, and never to where they may not lead."""

import asyncio
import http.server
import ipaddress
import json
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from service import parse_sweep, verify
from service.database.tables import DeliveryRow
from service.status import Status, append_status
from service.sweeps import control
from service.sweeps.log import write_status
from service.webhooks.sender import Sender
from service.webhooks.signature import new_secret
from service.webhooks.webhook_store import OF_EACH, TOGETHER, Due, Webhooks
from tests.api.conftest import Service, eventually
from tests.api.http.test_routes import refused
from tests.service.sweeps.test_http import ended
from trainers.events import State

LOOPBACK = "127.0.0.0/8"
Serve = Callable[..., Service]


class Receiver(http.server.ThreadingHTTPServer):
    """Keeps what it is sent; answers with the statuses that it is given, then with 204."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_port}/hook"
        self.goes_on = threading.Event()
        self.goes_on.set()

    @property
    def told(self) -> list[dict[str, Any]]:
        return [json.loads(body)["data"] for _, body in self.got]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.goes_on.wait(120)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.goes_on.set()
        server.shutdown()
        thread.join(60)


def hook(service: Service, url: str, *states: str) -> dict[str, Any]:
    answer = service.http.post("/v1/webhooks", json={"url": url, "states": list(states)})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/webhooks/{answer.json()['id']}"
    return dict(answer.json())


def run_once(service: Service) -> str:
    job = service.client.submit({"name": "told"})
    run = service.started(job.id)
    run.state(State.STARTING)
    run.state(State.RUNNING)
    run.succeed()
    service.client.wait(job.id)
    return job.id


def test_every_state_is_told_once_in_order_and_signed(serve: Serve, receiver: Receiver) -> None:
    service = serve(allow=LOOPBACK)
    before = run_once(service)
    made, some = hook(service, receiver.url), hook(service, receiver.url, "SUCCEEDED")
    job_id = run_once(service)
    eventually(lambda: len(receiver.got) == 5)
    by_hook = {one["id"]: [] for one in (made, some)}
    for headers, body in receiver.got:
        (owner,) = (one for one in (made, some) if verify(one["secret"], headers, body))
        by_hook[owner["id"]].append(json.loads(body))
        assert headers["content-type"] == "application/json"
        assert headers["host"] == receiver.url.split("/")[2]
    assert [one["data"]["state"] for one in by_hook[made["id"]]] == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
    assert [one["data"]["state"] for one in by_hook[some["id"]]] == ["SUCCEEDED"]
    assert {one["job_id"] for one in receiver.told} == {job_id} != {before}
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 5


def test_sweeps_are_told_like_jobs_once_each_also_over_a_restart(
    serve: Serve, receiver: Receiver, tmp_path: Path
) -> None:
    def begin(name: str) -> Path:
        folder = tmp_path / "sweeps" / f"sweep-{name}"
        store = control.begin(folder, folder.name, parse_sweep({"name": name, "job": {}, "axes": {"seed": [0]}}))
        store.close(Status(State.CANCELLED, "Told", "told by a test"), with_queued=True)  # so that nobody drives it
        return folder

    earlier = begin("before")
    write_status(earlier, Status(State.RUNNING, "Running", "runs its trials"))
    service = serve(allow=LOOPBACK)
    made = hook(service, receiver.url)
    folder = begin("told")
    write_status(folder, Status(State.RUNNING, "Running", "runs its trials"))
    eventually(lambda: len(receiver.got) == 1)
    service.stop()
    write_status(folder, Status(State.FAILED, "DriverLost", "its driver died"))
    service = serve(allow=LOOPBACK)
    write_status(earlier, Status(State.CANCELLED, "Cancelled", "stopped"))
    eventually(lambda: len(receiver.got) == 3)
    bodies = [json.loads(body) for headers, body in receiver.got if verify(made["secret"], headers, body)]
    assert {body["type"] for body in bodies} == {"sweep.state"}
    told = [(one["data"]["sweep_id"], one["data"]["name"], one["data"]["state"]) for one in bodies]
    assert told[0] == ("sweep-told", "told", "RUNNING")
    assert sorted(told[1:]) == [("sweep-before", "before", "CANCELLED"), ("sweep-told", "told", "FAILED")]
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 3
    shown = service.http.get(f"/v1/webhooks/{made['id']}").json()["deliveries"]
    assert {one["job_id"] for one in shown} == {"sweep-told", "sweep-before"}


def test_what_fails_is_tried_again_with_the_same_id(serve: Serve, receiver: Receiver) -> None:
    service = serve(allow=LOOPBACK)
    receiver.statuses = [500, 302, 404]
    made = hook(service, receiver.url, "SUCCEEDED")
    run_once(service)
    eventually(lambda: len(receiver.got) == 4)
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert all(verify(made["secret"], *one) for one in receiver.got)

    def last() -> dict[str, Any]:
        return dict(service.http.get(f"/v1/webhooks/{made['id']}").json()["deliveries"][0])

    eventually(lambda: last()["delivered"] is not None)
    assert (last()["attempts"], last()["due"], last()["error"]) == (4, None, "")


def test_it_is_given_up_in_the_end_and_redirects_lead_nowhere(serve: Serve, receiver: Receiver) -> None:
    service = serve(allow=LOOPBACK)
    receiver.statuses = [307] * 10
    made = hook(service, receiver.url, "SUCCEEDED")
    run_once(service)

    def last() -> dict[str, Any]:
        return dict((service.http.get(f"/v1/webhooks/{made['id']}").json()["deliveries"] or [{}])[0])

    eventually(lambda: last().get("attempts") == 4)
    assert (last()["delivered"], last()["due"]) == (None, None)
    assert last()["error"] == "it answered 307 and led elsewhere"
    assert len(receiver.got) == 4


def test_what_happened_while_the_service_was_down_is_told_by_the_next(serve: Serve, receiver: Receiver) -> None:
    first = serve(allow=LOOPBACK)
    hook(first, receiver.url)
    job = first.client.submit({})
    run = first.started(job.id)
    run.state(State.RUNNING)
    eventually(lambda: [one["state"] for one in receiver.told] == ["QUEUED", "RUNNING"])
    first.stop()
    run.succeed()
    serve(allow=LOOPBACK)
    eventually(lambda: [one["state"] for one in receiver.told] == ["QUEUED", "RUNNING", "SUCCEEDED"])
    assert [one["seq"] for one in receiver.told] == [1, 2, 4]


def test_a_slow_receiver_keeps_no_other_waiting(serve: Serve, receiver: Receiver, tmp_path: Path) -> None:
    with Receiver() as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        service = serve(allow=LOOPBACK)
        receiver.goes_on.clear()
        hook(service, receiver.url)
        hook(service, other.url)
        run_once(service)
        eventually(lambda: len(other.got) == 4)
        assert receiver.got == []
        other.shutdown()


def test_what_is_deleted_before_the_sender_has_looked_is_told_all_the_same(
    serve: Serve, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: Sender) -> None: ...

    monkeypatch.setattr(Sender, "start", never)
    service = serve(allow=LOOPBACK)
    made = hook(service, receiver.url)
    store = ended(tmp_path, 1)
    (trial,) = store.trials()
    append_status(store.run_dir(trial.id), Status(State.SUCCEEDED, "Completed", "trained 2 epochs"))
    write_status(store.folder, Status(State.SUCCEEDED, "Completed", "ran its trials"))
    service.client.delete_sweep("sweep-1")
    job = run_once(service)
    service.client.delete(job)
    told = service.http.get(f"/v1/webhooks/{made['id']}").json()["deliveries"]
    states = [(one["job_id"], one["body"]["data"]["state"]) for one in reversed(told)]
    assert states[:2] == [(trial.id, "SUCCEEDED"), ("sweep-1", "SUCCEEDED")]
    assert states[2:] == [(job, state) for state in ("QUEUED", "STARTING", "RUNNING", "SUCCEEDED")]


def test_what_could_not_be_stored_is_read_again(
    serve: Serve, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, failures = Webhooks._add, [OSError("the database is busy")]

    def fails_once(webhooks: Webhooks, *what: Any) -> None:
        if failures:
            raise failures.pop()
        add(webhooks, *what)

    monkeypatch.setattr(Webhooks, "_add", fails_once)
    service = serve(allow=LOOPBACK)
    hook(service, receiver.url, "QUEUED", "SUCCEEDED")
    job = service.client.submit({})
    eventually(lambda: not failures)
    service.started(job.id).succeed()
    eventually(lambda: [one["state"] for one in receiver.told] == ["QUEUED", "SUCCEEDED"])


class LongLook(Webhooks):
    """One message. The second look finds it due, and by the time that it answers the message was delivered."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.looks = 0
        self.sender = Sender(self, (ipaddress.ip_network(LOOPBACK),), look_every_s=0.01)

    def collect(self) -> bool:
        return True

    def due(self, but: Collection[str] = ()) -> list[Due]:
        self.looks += 1
        if self.looks == 2:
            self.receiver.goes_on.set()
            eventually(lambda: not self.sender.sending)
        secret, url = new_secret(), self.receiver.url
        due = Due(id=1, message_id="msg", webhook_id="hook", url=url, secret=secret, body=b"{}", attempts=0)
        return [due] if self.looks <= 2 else []

    def tried(self, due: Due, error: str, again_s: float | None) -> None:
        assert (due.id, error) == (1, "")


def test_what_is_delivered_while_one_looks_is_not_sent_again(receiver: Receiver) -> None:
    async def look_three_times() -> None:
        await webhooks.sender.start()
        await asyncio.to_thread(eventually, lambda: webhooks.looks >= 3 and not webhooks.sender.sending)
        await webhooks.sender.stop()

    webhooks = LongLook(receiver)
    receiver.goes_on.clear()
    asyncio.run(look_three_times())
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x", "http://localhost/x", "http://169.254.169.254/meta", "http://[::1]/", "file:///etc"]
)
def test_private_addresses_are_refused(shared: Service, url: str) -> None:
    answer = shared.http.post("/v1/webhooks", json={"url": url})
    assert refused(answer, 422) == ["/url"]
    assert shared.http.get("/v1/webhooks").json() == {"webhooks": []}


def test_a_name_that_comes_to_mean_a_private_address_is_not_told(serve: Serve, receiver: Receiver) -> None:
    """Checked when it was made, and again by the server that sends: here the network is no longer allowed."""
    first = serve(allow=LOOPBACK)
    made = hook(first, receiver.url)
    first.stop()
    second = serve()
    run_once(second)

    def deliveries() -> list[dict[str, Any]]:
        return list(second.http.get(f"/v1/webhooks/{made['id']}").json()["deliveries"])

    eventually(lambda: any(one["attempts"] for one in deliveries()))
    assert "not an address of the public network" in next(one["error"] for one in deliveries() if one["attempts"])
    assert receiver.got == []


def test_one_that_is_deleted_hears_nothing_more(serve: Serve, receiver: Receiver) -> None:
    service = serve(allow=LOOPBACK)
    made = hook(service, receiver.url)
    other = hook(service, receiver.url, "SUCCEEDED")
    assert service.http.delete(f"/v1/webhooks/{made['id']}").status_code == 204
    run_once(service)
    eventually(lambda: bool(receiver.got))
    assert [one["state"] for one in receiver.told] == ["SUCCEEDED"]
    assert refused(service.http.get(f"/v1/webhooks/{made['id']}"), 404) == []
    assert refused(service.http.delete(f"/v1/webhooks/{made['id']}"), 404) == []
    listed = service.http.get("/v1/webhooks").json()["webhooks"]
    assert [one["id"] for one in listed] == [other["id"]]
    assert "secret" not in listed[0]


def test_webhooks_are_for_admins(serve: Serve) -> None:
    service = serve(is_required=True)
    for role, status in (("viewer", 403), ("user", 403), ("admin", 200)):
        assert service.http.get("/v1/webhooks", headers=service.bearer(role)).status_code == status


def test_a_webhook_with_many_messages_keeps_no_other_waiting(serve: Serve, receiver: Receiver, tmp_path: Path) -> None:
    """The oldest 200 of all were looked at, and all of them could be a dead one's."""
    service = serve(allow=LOOPBACK)
    dead, alive = hook(service, "http://127.0.0.1:9/hook"), hook(service, receiver.url)
    webhooks = Webhooks(service.tokens.engine, tmp_path)
    owed = [(dead["id"], seq) for seq in range(TOGETHER + 1)] + [(alive["id"], 1)]
    with Session(webhooks.engine) as session:
        session.add_all(
            DeliveryRow(webhook_id=of, job_id="job", seq=seq, body={"data": {"of": of}}, attempts=0, error="", due=0.0)
            for of, seq in owed
        )
        session.commit()
    eventually(lambda: receiver.told == [{"of": alive["id"]}])
    eventually(lambda: [one.webhook_id for one in webhooks.due()] == [dead["id"]] * OF_EACH)
    assert not webhooks.due(but=[dead["id"]])


def test_a_webhook_that_fails_is_left_alone_longer_and_longer(tmp_path: Path) -> None:
    """None of its messages loses an attempt meanwhile."""
    tried: list[int] = []

    class Failing(Sender):
        async def send(self, due: Due) -> str:
            tried.append(due.id)
            return "no answer"

    class Owing:
        def tried(self, due: Due, error: str, again_s: float | None) -> None:
            pass

    async def scenario() -> None:
        sender, until = Failing(Owing(), look_every_s=1000), 0.0  # type: ignore[arg-type]
        fields = {"webhook_id": "hook", "url": "http://x", "secret": new_secret(), "body": b"{}", "attempts": 0}
        due = [Due.model_validate(fields | {"id": number, "message_id": f"msg {number}"}) for number in range(5)]
        for failures in range(1, 5):
            await sender._send_all(due)
            assert tried == [0] * failures, "the first one only"
            assert sender._resting() == {"hook"}
            assert sender.rests["hook"].failures == failures
            assert sender.rests["hook"].until > until
            until = sender.rests["hook"].until

    asyncio.run(scenario())
