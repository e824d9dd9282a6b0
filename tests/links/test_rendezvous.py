"""The rendezvous: keys, values, and the news that a connection ended."""

import threading
from collections.abc import Iterator

import pytest

from trainers.errors import PeerLost
from trainers.links.rendezvous import Rendezvous, RendezvousClient, host_rendezvous, own_host, reach_rendezvous


@pytest.fixture
def rendezvous() -> Iterator[Rendezvous]:
    found = host_rendezvous("127.0.0.1")
    yield found
    found.close()


def reach(rendezvous: Rendezvous) -> RendezvousClient:
    return reach_rendezvous(("127.0.0.1", rendezvous.port), 5)


def test_what_one_tells_another_hears_before_and_after(rendezvous: Rendezvous) -> None:
    one, other = reach(rendezvous), reach(rendezvous)
    heard: list[bytes] = []
    waits = threading.Thread(target=lambda: heard.append(other.get("key")))
    waits.start()
    one.set("key", b"\x00value" * 100)
    waits.join(30)
    assert heard == [one.get("key", 5)] == [b"\x00value" * 100]
    assert one.has("key")
    assert not one.has("another")
    assert own_host(one) == "127.0.0.1"
    one.close()
    other.close()


def test_nobody_waits_longer_than_asked(rendezvous: Rendezvous) -> None:
    client = reach(rendezvous)
    with pytest.raises(PeerLost, match="nobody told key"):
        client.get("key", 0.01)
    client.close()


def test_the_end_of_a_connection_is_told_even_while_it_waits(rendezvous: Rendezvous) -> None:
    dies, hears = reach(rendezvous), reach(rendezvous)
    dies.set_at_end("dead")

    def wait() -> None:
        with pytest.raises(PeerLost):
            dies.get("dead")

    waits = threading.Thread(target=wait)
    waits.start()
    assert not hears.has("dead")
    dies.close()
    assert hears.get("dead", 5) == b""
    waits.join(30)
    assert not waits.is_alive()
    hears.close()


def test_those_who_wait_are_told_that_it_is_gone(rendezvous: Rendezvous) -> None:
    client = reach(rendezvous)
    threading.Timer(0.02, rendezvous.close).start()
    with pytest.raises(PeerLost, match="gone"):
        client.get("key")
    client.close()


def test_a_rendezvous_that_is_not_there() -> None:
    with pytest.raises(PeerLost, match="does not answer"):
        reach_rendezvous(("127.0.0.1", 1), 0.1)
