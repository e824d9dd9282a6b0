"""The examples that one worker holds, as rows of bytes: id, label, the virtual worker that trains it, pixels.

The id moves with the example, so that augmentation and dropout draw the same numbers for it on every worker.
"""

import math
from typing import Any

import numpy as np

from trainers.data.draws import Int64Array
from trainers.data.partitioned.shuffle import Held

FREE = -1
"""The virtual rank of a row that holds no example."""


def row_type(image_shape: tuple[int, ...]) -> np.dtype[Any]:
    """The layout of a row. Its size is a multiple of that of a float32, which is what transports carry."""
    num_bytes = 16 + math.prod(image_shape)
    return np.dtype(
        {
            "names": ["id", "label", "rank", "image"],
            "formats": ["<i8", "<i4", "<i4", (np.uint8, image_shape)],
            "offsets": [0, 8, 12, 16],
            "itemsize": -(-num_bytes // 4) * 4,
        }
    )


class Rows:
    """The examples of one worker, with spare rows for examples that arrive before others have left."""

    def __init__(self, kind: np.dtype[Any], capacity: int) -> None:
        self.rows = np.zeros(capacity, kind)
        self.rows["rank"] = FREE
        self.slots: Int64Array = np.empty(0, dtype=np.int64)  # of the examples, in the order of their ids
        self.ids: Int64Array = np.empty(0, dtype=np.int64)  # (n,) ascending

    def index(self) -> None:
        """Rebuild the index. To be called whenever rows have changed."""
        slots = np.flatnonzero(self.rows["rank"] != FREE)
        self.slots = slots[np.argsort(self.rows["id"][slots])]
        self.ids = self.rows["id"][self.slots]

    def find(self, ids: Int64Array) -> Int64Array:
        """The slots of the examples with these ids, (B,). The worker must hold all of them."""
        positions = np.searchsorted(self.ids, ids)
        assert np.array_equal(self.ids.take(positions, mode="clip"), ids), (
            "a worker was asked for what it does not hold"
        )
        return self.slots[positions]

    def of(self, rank: int) -> Held:
        """The examples of one virtual worker."""
        mine = self.slots[self.rows["rank"][self.slots] == rank]
        return Held(self.rows["id"][mine], self.rows["label"][mine].astype(np.int64))
