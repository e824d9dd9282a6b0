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
    class_counts: tuple[int, ...] = ()
    """Training examples of each class, or pixels; empty where nobody has asked, or where the set does not tell."""
    vocabulary: int = 0
    """Tokens run from 0 to vocabulary - 1; 0 where the inputs are no tokens."""
    categories: tuple[int, ...] = ()
    """Of a row of numbers: how many codes each of its last columns may hold, where they stand for categories."""
    mean: tuple[float, ...] = ()
    """Of images scaled to 0..1: what was taken from each channel before a model saw them, (C,); empty where nothing."""
    std: tuple[float, ...] = ()
    """By what each was divided then, (C,)."""
    padded: bool = False
    """Whether some targets may not count."""
    unit: str = ""
    """By what texts are compared: `byte` or `character`."""
    units_per_token: float = 1.0
    """How many of these a token of the test set stands for, on average."""

    @property
    def words(self) -> str:
        """What an example is, for people."""
        shape = "x".join(map(str, self.inputs))
        what = [f"{shape} numbers each" if len(self.inputs) == 1 else shape]
        if self.vocabulary:
            what = [f"{shape} tokens each", f"vocabulary {self.vocabulary:,}"]
        what += [f"{len(self.categories)} of them codes of categories"] if self.categories else []
        what += [f"{self.classes:,} classes"] if self.classes else []
        what += [f"{self.outputs} target{'s' if self.outputs > 1 else ''}"] if self.outputs else []
        return ", ".join(what)

    def sentence(self, num_train: int, num_test: int, num_validation: int = 0) -> str:
        """What the log of a run says of a set of so many examples."""
        validation = f", {num_validation:,} validation" if num_validation else ""
        return f"{num_train:,} training{validation} and {num_test:,} test examples: {self.words}"
