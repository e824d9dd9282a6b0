"""Reads a job's event stream over a connection that is cut again and again, whatever runs behind the service."""

from collections.abc import Callable

import httpx2

from trainers.events import Event


def read_with_cuts(url: str, job_id: str, cuts: int, between: Callable[[int], None] = lambda _: None) -> list[Event]:
    """The whole log, read over `cuts` + 1 connections that overlap in nothing; `between` is called after each cut."""
    seen: list[Event] = []
    with httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
        for cut in range(cuts):
            wanted = 1 + cut % 3
            with http.sse(f"/v1/jobs/{job_id}/events", headers=_resume(seen)) as source:
                for message in source:
                    if message.data:
                        seen.append(_checked(message))
                        wanted -= 1
                    if wanted == 0 or (seen and seen[-1].is_terminal):
                        break
            between(cut)
        with http.sse(f"/v1/jobs/{job_id}/events", headers=_resume(seen)) as source:
            seen += [_checked(message) for message in source if message.data]
    return seen


def assert_whole(events: list[Event]) -> None:
    """Every number once, in order, to a terminal event."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.is_terminal for event in events] == [False] * (len(events) - 1) + [True]


def _resume(seen: list[Event]) -> dict[str, str]:
    return {"Last-Event-ID": str(seen[-1].seq)} if seen else {}


def _checked(message: httpx2.ServerSentEvent) -> Event:
    event = Event.model_validate_json(message.data)
    assert (message.id, message.event) == (str(event.seq), event.type)
    return event
