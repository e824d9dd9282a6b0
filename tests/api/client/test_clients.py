"""Both clients: the same methods, iterators that reconnect, and a token that goes nowhere else."""

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from api import AsyncClient, Client, Refused, Unreachable
from api.client import calls
from service import State
from tests.api.conftest import Service, eventually
from tests.api.http.test_streams import cutting_proxy
from tests.api.streams import assert_whole


def methods(kind: type) -> dict[str, list[tuple[str, object, object]]]:
    """Every public method with its parameters."""
    return {
        name: [(p.name, p.default, p.annotation) for p in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_can_do_the_same() -> None:
    assert methods(Client) == methods(AsyncClient)
    assert len(methods(Client)) > 25


def test_the_asynchronous_client_does_all_that_one_does_with_a_job(service: Service) -> None:
    async def use() -> None:
        async with AsyncClient(service.url, patience_s=10) as client:
            assert (await client.check({"epochs": 3})).epochs == 3
            job = await client.submit({"name": "first"}, key="k")
            assert (await client.submit({"name": "first"}, key="k")).id == job.id
            run = await asyncio.to_thread(service.started, job.id)
            run.state(State.RUNNING)
            run.step(1.0)
            run.succeed()
            events = [event async for event in client.events(job.id)]
            assert_whole(events)
            assert [event.seq async for event in client.events(job.id, after=2)] == [event.seq for event in events[2:]]
            assert (await client.wait(job.id)).state is State.SUCCEEDED
            assert "STATE SUCCEEDED" in await client.logs(job.id)
            assert [one.id async for one in client.list()] == [job.id]
            assert (await client.who()).user == "local"
            assert {one.name async for one in client.datasets()} >= {"digits", "mnist"}
            with pytest.raises(Refused, match="no job"):
                await client.get("nosuchjob")
            with pytest.raises(Refused):
                _ = [event async for event in client.events("nosuchjob")]

    asyncio.run(use())


def test_its_iterators_reconnect_too(service: Service) -> None:
    job = service.client.submit({"epochs": 4})
    run = service.started(job.id)
    run.state(State.RUNNING)
    for step in range(60):
        run.step(step / 10, loss=step / 7)
    run.succeed()

    async def read(url: str) -> list[object]:
        async with AsyncClient(url, patience_s=10) as client:
            return [event async for event in client.events(job.id)]

    with cutting_proxy(service.url, after_bytes=1777) as (url, connections):
        events = asyncio.run(read(url))
    assert len(connections) > 10
    assert events == list(service.client.events(job.id))


def test_nobody_there(service: Service) -> None:
    async def ask() -> None:
        async with AsyncClient("http://127.0.0.1:9") as client:
            with pytest.raises(Unreachable, match="millrace serve"):
                await client.get("any")
            with pytest.raises(Unreachable, match="millrace serve"):
                _ = [event async for event in client.events("any")]

    asyncio.run(ask())


def test_lists_longer_than_a_page(service: Service) -> None:
    ids = [service.client.submit({"workers": 4}).id for _ in range(52)]

    async def read() -> list[str]:
        async with AsyncClient(service.url) as client:
            return [job.id async for job in client.list()]

    assert asyncio.run(read()) == [job.id for job in service.client.list()] == ids[::-1]


def test_a_token_opens_the_door(serve: Callable[..., Service]) -> None:
    service = serve(is_required=True)
    text = service.bearer("user")["Authorization"].removeprefix("Bearer ")
    with Client(service.url, token=text) as client:
        job = client.submit({})
        service.started(job.id).succeed()
        assert [event.type for event in client.events(job.id)][-1] == "state"
        assert client.who().role == "user"
    with pytest.raises(Refused) as refused:
        service.client.get(job.id)
    assert refused.value.problem.status == 401
    with pytest.raises(Refused):
        list(service.client.events(job.id))


def test_specs_may_be_files(service: Service, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: from-file\n")
    assert service.client.submit(tmp_path / "job.yaml").name == "from-file"
    assert calls.check(tmp_path / "job.yaml").options["json"]["name"] == "from-file"


def test_events_of_a_job_that_goes_on_are_given_as_they_come(service: Service) -> None:
    job = service.client.submit({})
    run = service.started(job.id)
    events = service.client.events(job.id)
    assert next(events).data["state"] == "QUEUED"
    run.state(State.RUNNING)
    assert next(events).data["state"] == "RUNNING"
    run.succeed()
    assert [event.type for event in events] == ["result", "state"]
    eventually(lambda: service.client.get(job.id).state is State.SUCCEEDED)
