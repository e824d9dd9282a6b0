"""The addresses that webhooks may lead to: public ones, and private ones in networks that were allowed."""

import asyncio
import functools
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2

from service.errors import WebhookRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
RESOLVE_WITHIN_S = 5.0
MAX_URL = 500
NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Target:
    """The resolved address of a webhook."""

    scheme: str
    name: str
    """The host as the URL names it: for the header Host and the certificate."""
    address: Address
    port: int


@functools.cache
def certificates() -> ssl.SSLContext:
    """The certificates that servers are checked with. They are read once, because that takes longer than a request."""
    return httpx2.create_ssl_context(trust_env=False)


def networks(allowed: tuple[str, ...]) -> tuple[Network, ...]:
    """Networks from their texts, such as `10.1.0.0/16`. Raises ValueError."""
    return tuple(ipaddress.ip_network(text) for text in allowed)


def split(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises WebhookRefused unless it is the plain URL of a web server."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WebhookRefused(f"{url[:100]!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or len(url) > MAX_URL or not url.isprintable():
        raise WebhookRefused("a webhook is an http:// or https:// URL of at most 500 characters")
    if parts.username is not None or parts.password is not None:
        raise WebhookRefused("a webhook's URL holds no user and no password; check the signature instead")
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


async def resolve(url: str, allowed: tuple[Network, ...]) -> Target:
    """Look the name up once. The connection is made to this address, without a second look-up.

    Raises WebhookRefused if any address of the name is neither public nor allowed.
    """
    scheme, name, port = split(url)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_WITHIN_S):
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        raise WebhookRefused(f"the name {name!r} cannot be looked up") from None
    addresses = [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
    for address in addresses:
        if not is_public(address) and not any(address in network for network in allowed):
            refusal = f"{name} is {address}, which is not an address of the public network"
            raise WebhookRefused(
                f"{refusal}; whoever runs the service may allow it with `serve --webhook-allow NETWORK`"
            )
    return Target(scheme, name, addresses[0], port)


def is_public(address: Address) -> bool:
    """Whether it is a public address, and so is any address that it embeds."""
    if isinstance(address, ipaddress.IPv6Address):
        wrapped = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in NAT64:
            wrapped.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        inner = [one for one in wrapped if one is not None]
        if inner:
            return all(is_public(one) for one in inner)
    return address.is_global and not address.is_multicast and not address.is_reserved
