"""What is heard of a peer that closes."""

import socket
from pathlib import Path

import pytest

from trainers.errors import PeerLost
from trainers.links.channel import SocketChannel, connect, listen


def pair(folder: Path) -> tuple[SocketChannel, SocketChannel]:
    server = listen(folder / "channel")
    here = connect(folder / "channel", "there", timeout_s=5)
    there = SocketChannel(server.accept()[0], "here")
    server.close()
    return here, there


def test_what_a_peer_said_before_it_closed_is_heard_though_it_has_not_listened(tmp_path: Path) -> None:
    here, there = pair(tmp_path)
    here.send(b"never read")
    there.send(b"first")
    there.send(b"second")
    there.close()
    assert [here.receive(), here.receive()] == [b"first", b"second"]
    with pytest.raises(PeerLost, match="there is gone"):
        here.receive()
    here.close()


def test_one_who_died_as_it_began_to_listen_keeps_nobody_from_it(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(tmp_path / "shard-0~"))
    listen(tmp_path / "shard-0").close()
    assert [path.name for path in tmp_path.iterdir()] == ["shard-0"]


def test_nothing_more_is_heard_of_a_peer_that_is_gone(tmp_path: Path) -> None:
    here, there = pair(tmp_path)
    there.close()
    with pytest.raises(PeerLost):
        here.receive()
    with pytest.raises(PeerLost):
        here.send(b"anybody?")
    here.close()
