"""Who waits for others to form a group with stops as soon as they are given up, and not after the longest time."""

from pathlib import Path
from threading import Event, Thread

import pytest
import torch

from trainers.collectives.group_forming import GroupConfig
from trainers.collectives.hierarchical import join_hierarchical
from trainers.collectives.process_group import ProcessGroupCollectives
from trainers.collectives.shared_memory import SharedMemoryCollectives
from trainers.errors import PeerLost
from trainers.links.rendezvous import host_rendezvous


@pytest.mark.parametrize("rank", [0, 1], ids=["first", "last"])
@pytest.mark.parametrize("kind", ["shared_memory", "process_group", "hierarchical"])
def test_who_waits_for_one_that_is_dead_can_be_told(tmp_path: Path, kind: str, rank: int) -> None:
    rendezvous, given_up, lost = host_rendezvous("127.0.0.1"), Event(), list[PeerLost]()
    nodes = (0, 1) if kind == "hierarchical" else ()
    config = GroupConfig(("127.0.0.1", rendezvous.port), "g0", rank, 2, torch.device("cpu"), nodes=nodes)

    def join() -> None:
        try:
            if kind == "shared_memory":
                SharedMemoryCollectives(tmp_path, rank, 2, given_up.is_set)
            elif kind == "hierarchical":
                join_hierarchical(config, tmp_path, given_up.is_set)
            else:
                ProcessGroupCollectives(config, given_up.is_set)
        except PeerLost as error:
            lost.append(error)

    waits = Thread(target=join)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    given_up.set()
    waits.join(30)
    assert [str(error).endswith("given up") for error in lost] == [True]
    rendezvous.close()
