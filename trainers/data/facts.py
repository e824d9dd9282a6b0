"""What the examples of a dataset look like to a model. Imports no torch."""

from dataclasses import dataclass

NO_CLASS = 255
"""The class of a pixel that does not count, as in torchvision's references."""


@dataclass(frozen=True)
class DataFacts:
    """Shapes without the dimension of the minibatch."""

    inputs: tuple[int, ...]
    """Of one input: (C, H, W) of an image, (F,) of a row of F numbers, (T,) of T tokens."""
    classes: int = 0
    """Labels run from 0 to classes - 1; 0 where the targets are no labels."""
    outputs: int = 0
    """Numbers that one target has; 0 where it has none."""
    pixel_classes: int = 0
    """Of images whose pixels have a class each, 0 to pixel_classes - 1; 0 where they have none."""
    vocabulary: int = 0
    """Tokens run from 0 to vocabulary - 1; 0 where the inputs are no tokens."""
    padded: bool = False
    """Whether some targets may not count."""
    unit: str = ""
    """What a token is: `byte` or `character`."""
