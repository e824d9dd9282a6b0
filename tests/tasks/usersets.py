"""Data as users give them: images with a class for each pixel, or with boxes, dicts for a model of transformers."""

import numpy as np

Halves = tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]


def shapes_in_images(root: str) -> Halves:
    """Bright squares (class 1) and crosses of lines (class 2) on noise, 3 x 10 x 9; the border does not count."""
    draw = np.random.default_rng(4)

    def half(count: int) -> tuple[np.ndarray, np.ndarray]:
        images = draw.integers(0, 90, (count, 3, 10, 9)).astype(np.uint8)
        classes = np.zeros((count, 10, 9), np.uint8)
        for image, pixels in zip(images, classes, strict=True):
            top, left = draw.integers(1, 5, 2)
            pixels[top : top + 4, left : left + 3] = 1
            pixels[int(draw.integers(1, 9))] = 2
            image[0][pixels == 1] += 120
            image[1][pixels == 2] += 150
            pixels[0] = 255
        return images, classes

    return half(46), half(9)


def sentences(root: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Tokens that count upwards, 9 in a row; of some the label is hidden (-100), of how many differs by row."""
    draw = np.random.default_rng(5)

    def half(count: int) -> dict[str, np.ndarray]:
        tokens = (draw.integers(0, 20, (count, 1)) + np.arange(9)) % 20
        hidden = draw.random((count, 9)) < draw.random((count, 1))
        return {
            "input_ids": np.where(hidden, 20, tokens),
            "attention_mask": np.ones((count, 9), np.int64),
            "labels": np.where(hidden, tokens, -100),
        }

    return half(46), half(9)


def small_images(root: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Colour images of 32 x 32, in 3 classes."""
    draw = np.random.default_rng(6)
    labels = draw.integers(0, 3, 16)
    images = (draw.integers(0, 100, (16, 3, 32, 32)) + 50 * labels[:, None, None, None]).astype(np.uint8)
    return images[:12], labels[:12], images[12:], labels[12:]


def one_class_to_test(root: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same, and all that is held out is of class 0."""
    images, labels, held_out, _ = small_images(root)
    return images, labels, held_out, np.zeros(len(held_out), np.int64)


class Framed:
    """A bright square or a bright bar on noise, 1 x 24 x 20, and the box around it."""

    classes = 3  # with the ground

    def __init__(self, count: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.labels, self.corners = draw.integers(1, 3, count), draw.integers(0, 9, (count, 2))
        self.images = draw.integers(0, 60, (count, 1, 24, 20)).astype(np.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[np.ndarray, dict[str, object]]:
        (left, top), label = self.corners[i], int(self.labels[i])
        right, bottom = left + (10 if label == 1 else 5), top + 10
        image = self.images[i].copy()
        image[0, top:bottom, left:right] += 150
        return image, {"boxes": [[left, top, right, bottom]], "labels": [label]}


def boxes_in_images(root: str) -> tuple[Framed, Framed]:
    return Framed(14, 7), Framed(4, 8)
