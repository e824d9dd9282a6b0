"""Kernels of a GPU that give the same bits each time.

A run asks torch for them, and torch warns of an operation that has none. Of attention that is not enough: its backward
pass takes the deterministic form only where one without would raise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

LACKING = "does not have a deterministic implementation"


def ask_for_deterministic_kernels() -> None:
    """Of whatever this process computes on a GPU from here on."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing here reads what nobody wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def strictly(on: bool) -> Iterator[None]:
    """An operation without a deterministic form raises."""
    if not on:
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


def is_deterministic(compute: Callable[[], object]) -> bool:
    """Whether each operation of `compute` has a deterministic form."""
    try:
        with strictly(True):
            compute()
    except RuntimeError as error:
        if LACKING in str(error):
            return False
        raise
    return True
