"""The compiled pass of Adam, where it cannot be kept."""

import numpy as np
import pytest

from trainers.optim.optimizers.adam import kernel


def test_it_is_compiled_anew_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def jit(*signature: object, cache: bool = False) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return compiled(*signature)

    compiled = kernel.jit
    monkeypatch.setattr(kernel, "jit", jit)
    again = kernel._kept(kernel.adam.py_func)
    numbers = np.random.default_rng(0).random((9, 70), np.float32)
    factors = np.array([0.9, 0.1, 0.99, 0.01, 0.05, 0.2, 1e-8, 1], np.float32)
    found = []
    for adam in (kernel.adam, again):
        vectors = numbers.copy()
        adam(*vectors, np.array([0, 3, 9, 70]), *factors)
        found.append(vectors)
    assert np.array_equal(*found)
    assert not np.array_equal(found[0], numbers)
