"""One Ray for the whole session, and the data that lies beside the repository where there is any."""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # before torch: as in the workers, for equal bits

import pytest

import trainers
from trainers import ClusterInfo

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterInfo]:
    """A Ray of 8 logical CPUs on this machine."""
    with trainers.embedded(num_cpus=8) as info:
        yield info


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    """A folder with MNIST in torchvision's layout."""
    if not (SHARED_DATA / "MNIST").is_dir():
        pytest.skip("MNIST does not lie in ../shared/data")
    return SHARED_DATA
