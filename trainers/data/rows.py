"""The examples that one worker holds, as rows of bytes: id, label, the virtual worker that trains it, pixels.

The id stays with the example, so that augmentation and dropout draw for it what they draw anywhere.
"""

import math
from typing import Any

import numpy as np

from trainers.data.draws import Int64Array
from trainers.data.shuffle import Held

FREE = -1
"""In place of a virtual rank: nothing is in this row."""


def row_type(image_shape: tuple[int, ...]) -> np.dtype[Any]:
    """An example as bytes; a whole number of float32, since that is what travels."""
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
    """The examples of one worker, with some rows to spare."""

    def __init__(self, kind: np.dtype[Any], capacity: int) -> None:
        self.rows = np.zeros(capacity, kind)
        self.rows["rank"] = FREE
        self.slots: Int64Array = np.empty(0, dtype=np.int64)  # of the examples, in the order of their ids
        self.ids: Int64Array = np.empty(0, dtype=np.int64)  # (n,) ascending

    def index(self) -> None:
        """Find out what is held; to be called when that has changed."""
        slots = np.flatnonzero(self.rows["rank"] != FREE)
        self.slots = slots[np.argsort(self.rows["id"][slots])]
        self.ids = self.rows["id"][self.slots]

    def find(self, ids: Int64Array) -> Int64Array:
        """The slots of examples, (B,), all of which must be here."""
        places = np.searchsorted(self.ids, ids)
        assert np.array_equal(self.ids.take(places, mode="clip"), ids), "a worker was asked for what it does not hold"
        return self.slots[places]

    def of(self, rank: int) -> Held:
        """What a virtual worker holds."""
        mine = self.slots[self.rows["rank"][self.slots] == rank]
        return Held(self.rows["id"][mine], self.rows["label"][mine].astype(np.int64))
