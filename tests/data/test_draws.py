"""Draws belong to (seed, epoch, stream, example, unit) and to nothing else."""

import numpy as np
import pytest
import torch

from trainers.data.draws import permutation, uniform, uniform_torch

EXAMPLES = np.array([0, 1, 5, 59_999, 2**40], dtype=np.int64)


def test_row_is_the_same_in_any_minibatch() -> None:
    whole = uniform(3, 2, EXAMPLES, 11, 1)
    for i, example in enumerate(EXAMPLES):
        assert np.array_equal(uniform(3, 2, np.array([example]), 11, 1)[0], whole[i])
    assert np.array_equal(uniform(3, 2, EXAMPLES, 4, 1), whole[:, :4])


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (1, 7), (2**63 - 1, 1_000_000), (12345, -1)])
def test_torch_gives_the_same_bits_as_numpy(seed: int, epoch: int) -> None:
    in_torch = uniform_torch(seed, epoch, torch.from_numpy(EXAMPLES), 1000, 5)
    assert in_torch.dtype == torch.float32
    assert np.array_equal(uniform(seed, epoch, EXAMPLES, 1000, 5), in_torch.numpy())


@pytest.mark.parametrize("change", ["seed", "epoch", "stream", "example"])
def test_every_part_of_the_name_matters(change: str) -> None:
    name = {"seed": 0, "epoch": 0, "stream": 0, "example": 0}

    def drawn(seed: int, epoch: int, stream: int, example: int) -> np.ndarray:
        return uniform(seed, epoch, np.arange(example, example + 4096), 4, stream).ravel()

    one, other = drawn(**name), drawn(**{**name, change: 4096 if change == "example" else 1})
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03  # 4 deviations of 16,384 independent pairs


def test_numbers_are_uniform_along_both_axes() -> None:
    draws = uniform(0, 0, np.arange(2000), 50, 1)
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = np.histogram(draws, bins=100, range=(0, 1))[0]
    chi_squared = ((counts - 1000) ** 2 / 1000).sum()
    assert 50 < chi_squared < 160  # 99 degrees of freedom, deviation 14
    assert np.allclose(draws.mean(axis=0), 0.5, atol=0.03)
    assert np.allclose(draws.mean(axis=1), 0.5, atol=0.2)
    assert abs(np.corrcoef(draws[:, 0], draws[:, 1])[0, 1]) < 0.1
    assert abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.1


def test_these_are_the_numbers_for_ever() -> None:
    """A checkpoint of last year must be continued with the same draws."""
    expected = [[0.8821737170219421, 0.29954856634140015], [0.1028410792350769, 0.11539673805236816]]
    assert uniform(7, 3, np.array([1, 2]), 2, 1).tolist() == expected


def test_permutation_is_one_shuffling_an_epoch() -> None:
    order = permutation(1, 4, 1000)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(1000))
    assert np.array_equal(order, permutation(1, 4, 1000))
    assert not np.array_equal(order, permutation(1, 5, 1000))
    assert not np.array_equal(order, permutation(2, 4, 1000))
    assert permutation(0, 0, 10).tolist() == [0, 7, 8, 6, 9, 5, 1, 3, 2, 4]
