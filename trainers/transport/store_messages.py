"""What a worker and a shard say to each other."""

import struct

JOIN, LEAVE, FETCH, PUSH = 1, 2, 3, 4
REQUEST = struct.Struct("<9q")  # kind, then up to eight numbers
ACKNOWLEDGED, SNAPSHOT = 1, 2
REPLY = struct.Struct("<4q")  # kind, then up to three numbers
JOIN_TIMEOUT_S = 60.0


def request(kind: int, *numbers: int) -> bytes:
    """A message to a shard."""
    return REQUEST.pack(kind, *numbers, *[0] * (8 - len(numbers)))


def reply(kind: int, *numbers: int) -> bytes:
    """A message to a worker."""
    return REPLY.pack(kind, *numbers, *[0] * (3 - len(numbers)))
