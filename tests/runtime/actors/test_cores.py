"""The cores of a machine, from what the kernel says, and a thread that keeps to some."""

import os
import threading
from pathlib import Path

from trainers.elastic.binding import CoreMap
from trainers.runtime.actors.cores import core_map, keep_to


def test_the_cores_of_a_machine_by_numa_node(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    first, last = mine[0], mine[-1]
    for number, listed in enumerate((f"{first}", f"{last},4000-4001" if last != first else "4000-4001")):
        (tmp_path / f"node/node{number}").mkdir(parents=True)
        (tmp_path / f"node/node{number}/cpulist").write_text(f"{listed}\n")
    for cpu in mine:
        (tmp_path / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(f"{cpu},4000\n")
    expected = (((first,),), ((last,),)) if last != first else (((first,),),)
    assert core_map(tmp_path) == CoreMap(expected)  # those that this process may not use are left out
    assert core_map(tmp_path / "hidden") == CoreMap()


def test_a_thread_keeps_to_its_cores_and_lets_go_of_them_again() -> None:
    all_, found = os.sched_getaffinity(0), []

    def train() -> None:
        keep_to((min(all_),))
        found.append(os.sched_getaffinity(0))
        keep_to(())
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [{min(all_)}, all_]
    assert os.sched_getaffinity(0) == all_
