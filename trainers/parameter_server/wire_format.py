"""What a worker and a shard say to each other.

A worker numbers what it asks for: it may ask again after a silence, or another process of the same shard, and takes
the first answer. A shard answers what is repeated as it did before.
"""

import struct

JOIN, CLOCK, LEAVE, FETCH, PUSH, CLAIM, PASS = range(1, 8)
REQUEST = struct.Struct("<11q")  # kind, then up to ten numbers
JOINED, ACKNOWLEDGED, SNAPSHOT, CLAIMED, CLOSED = range(1, 6)
REPLY = struct.Struct("<6q")  # kind, then up to five numbers
JOIN_TIMEOUT_S = 60.0


def request(kind: int, *numbers: int) -> bytes:
    """A message to a shard."""
    return REQUEST.pack(kind, *numbers, *[0] * (10 - len(numbers)))


def reply(kind: int, *numbers: int) -> bytes:
    """A message to a worker."""
    return REPLY.pack(kind, *numbers, *[0] * (5 - len(numbers)))
