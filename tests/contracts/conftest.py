"""Clusters of shards and workers, for each implementation of `ParameterStore`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.groups import rendezvous_for
from tests.contracts.hosts import end_hosts
from tests.contracts.shards import KINDS, Stores
from trainers import ClusterInfo


@pytest.fixture(params=[*KINDS, pytest.param("object_store", marks=pytest.mark.xdist_group("ray"))])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    if request.param == "object_store":
        request.getfixturevalue("hosts_of_shards")
    with rendezvous_for(request.param) as rendezvous:
        yield Stores(request.param, tmp_path, rendezvous)


@pytest.fixture(scope="package")
def hosts_of_shards(cluster: ClusterInfo) -> Iterator[None]:
    """For all files of this folder: a host is a process that imports torch."""
    yield
    end_hosts()
