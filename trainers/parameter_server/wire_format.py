"""What a worker and a shard say to each other.

A worker numbers what it asks for: it may ask again after a silence, or another process of the same shard, and takes
the first answer. A shard answers what is repeated as it did before.
"""

import struct

from trainers.links.names import WireName

JOIN, CLOCK, LEAVE, FETCH, PUSH, CLAIM, PASS, ROUNDED_PUSH, COMPRESSED_PUSH = range(1, 10)
PUSHES: dict[int, WireName] = {PUSH: "float32", ROUNDED_PUSH: "bfloat16", COMPRESSED_PUSH: "float32"}
"""The kinds of pushes, with the numbers in which the gradient travels, or lies once what travelled is decoded."""
REQUEST = struct.Struct("<12q")  # kind, then up to eleven numbers
JOINED, ACKNOWLEDGED, SNAPSHOT, CLAIMED, CLOSED = range(1, 6)
REPLY = struct.Struct("<6q")  # kind, then up to five numbers
JOIN_TIMEOUT_S = 60.0


def request(kind: int, *numbers: int) -> bytes:
    """A message to a shard."""
    return REQUEST.pack(kind, *numbers, *[0] * (11 - len(numbers)))


def reply(kind: int, *numbers: int) -> bytes:
    """A message to a worker."""
    return REPLY.pack(kind, *numbers, *[0] * (5 - len(numbers)))


def bits_of(number: float) -> int:
    """A float among the integers of a message."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def number_of(bits: int) -> float:
    """The float that `bits_of` packed."""
    number: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return number
