"""A text in windows of bytes, of which some are hidden: what a model of transformers gets, by its arguments' names."""

from pathlib import Path

import numpy as np

WINDOW, HIDDEN = 32, 256


def masked(root: str):
    """For training the first 90 % of the file `root`, for the test the rest; 15 % of the bytes are hidden."""
    text = np.frombuffer(Path(root).read_bytes(), np.uint8).astype(np.int64)
    draw = np.random.default_rng(0)

    def half(part):
        windows = part[: len(part) // WINDOW * WINDOW].reshape(-1, WINDOW)
        hides = draw.random(windows.shape) < 0.15
        return {
            "input_ids": np.where(hides, HIDDEN, windows),
            "attention_mask": np.ones_like(windows),
            "labels": np.where(hides, windows, -100),  # only what is hidden counts
        }

    first = int(0.9 * len(text))
    return half(text[:first]), half(text[first:])
