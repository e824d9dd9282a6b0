"""Where a webhook may lead."""

import asyncio
import ipaddress
import socket
from typing import Any

import pytest

from service import WebhookRefused
from service.webhooks.addresses import is_public, networks, resolve, split

PRIVATE = [
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1",
    "::1", "::", "fe80::1", "fc00::1", "fd00::1", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::",
]  # fmt: skip


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses_are_known_in_every_form(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_ones_are_too(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://8.8.8.8/", "file:///etc/passwd", "8.8.8.8", "http://", "http://user:secret@8.8.8.8/", "http://8.8.8.8:x/",
        "http://8.8.8.8:99999/", "http://[::1/", "http://8.8.8.8/\r\nX: y", "http://8.8.8.8/" + "x" * 500, "gopher://x",
    ],
)  # fmt: skip
def test_what_is_no_address_of_a_web_server(url: str) -> None:
    with pytest.raises(WebhookRefused):
        split(url)


LOOPBACKS = [
    "http://127.0.0.1/",
    "http://localhost/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://127.1/",
    "http://[::1]/",
]


@pytest.mark.parametrize("url", LOOPBACKS)
def test_no_way_of_writing_loopback_gets_through(url: str) -> None:
    with pytest.raises(WebhookRefused):
        asyncio.run(resolve(url, ()))


def answering(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """A name server that knows these."""

    def look_up(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_one_private_address_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "8.8.8.8", "10.0.0.1")
    with pytest.raises(WebhookRefused, match=r"10\.0\.0\.1.*--webhook-allow"):
        asyncio.run(resolve("http://example.org/", ()))
    target = asyncio.run(resolve("https://example.org/", networks(("10.0.0.0/8",))))
    assert (str(target.address), target.name, target.port) == ("8.8.8.8", "example.org", 443)


def test_what_is_allowed_is_allowed_and_nothing_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "10.1.2.3")
    assert asyncio.run(resolve("http://inside/", networks(("10.1.0.0/16",)))).port == 80
    with pytest.raises(WebhookRefused):
        asyncio.run(resolve("http://inside/", networks(("10.2.0.0/16", "::/0"))))
