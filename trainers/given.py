"""The objects that `train()` was given: a task, a model, a dataset of a notebook's own.

They travel by value, as a module that the run's workers import: `train()` writes it, and a spec names what is in it
like any code of a user's, `given_to_train:MyTask`. No torch and no Ray is imported.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers.errors import SpecRejected

MODULE = "given_to_train"
FILE = "objects.pickle"
RAY = "ray:"
"""Stands before the name of a function that returns a Ray Dataset."""
SOURCE = '"""What train() was given."""\n\nfrom trainers.given import load\n\nglobals().update(load(__file__))\n'
"""Of the module."""


class Given:
    """Stands for an object where a spec names a function: each call makes the object anew, and calls it if it is one
    that is called."""

    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled
        pickle.loads(pickled)  # a module that it needs and that is not there is told when this one is imported

    def __call__(self, **arguments: Any) -> Any:
        """What the function or the class gives for these arguments; an object itself, which takes none."""
        found = pickle.loads(self.pickled)
        return found(**arguments) if is_called(found) else found


def is_called(found: Any) -> bool:
    """Whether an object is a class or a function, which is called with arguments, and not the thing itself."""
    return isinstance(found, type) or (callable(found) and hasattr(found, "__code__"))


def load(module: str) -> dict[str, Given]:
    """By name, the objects that lie beside a module's file."""
    pickled: Mapping[str, bytes] = pickle.loads(Path(module).with_name(FILE).read_bytes())
    return {name: Given(value) for name, value in pickled.items()}


def is_given(name: str) -> bool:
    """Whether a name of a spec means an object that `train()` was given."""
    return name.removeprefix(RAY).startswith(f"{MODULE}:")


def given_name(name: str) -> str:
    """What the object is called in the module."""
    return name.removeprefix(RAY).removeprefix(f"{MODULE}:")


def refuse_given(name: str) -> SpecRejected:
    """The error where nobody gave it."""
    what = given_name(name)
    return SpecRejected(
        f"{name} was an object that train() was given; give train() that {what} again, or put it into a folder, "
        f"name it module:{what} and the folder in `code`"
    )
