"""Who goes on, who hangs, and when to give up: decided without a machine."""

import pytest

from trainers.elastic.endurance import ATTEMPTS, Endurance
from trainers.elastic.pulse import SILENCE_S, STALL_S, Beat, Pulses
from trainers.elastic.succession import newest_of
from trainers.errors import WorkerDied
from trainers.runtime.crew import Hired
from trainers.runtime.messages import Ended
from trainers.runtime.team import Team


def ended(number: int, epoch: int, step: int, has_version: bool = True) -> Ended:
    return Ended(number, {"epoch": epoch, "step": step}, "worker 9 is gone", has_version, ("momentum",))


def test_the_newest_version_counts_also_if_only_one_has_it() -> None:
    newest = newest_of([ended(0, 1, 4), ended(3, 1, 5), ended(2, 1, 4)])
    assert newest is not None
    assert (newest.number, newest.position, newest.states) == (3, {"epoch": 1, "step": 5}, ("momentum",))


def test_the_first_step_of_an_epoch_is_newer_than_the_last_of_the_one_before() -> None:
    newest = newest_of([ended(0, 1, 28), ended(1, 2, 0)])
    assert newest is not None
    assert newest.number == 1


def test_who_holds_nothing_is_not_asked() -> None:
    newest = newest_of([ended(0, 3, 0, has_version=False), ended(1, 2, 0)])
    assert newest is not None
    assert newest.number == 1
    assert newest_of([ended(0, 3, 0, has_version=False)]) is None
    assert newest_of([]) is None


def test_a_worker_that_does_not_answer_hangs() -> None:
    pulses = Pulses()
    pulses.watch([1, 2], 100.0)
    for tick in range(4):
        pulses.hear(1, 100.0 + tick, Beat(0, tick, computes=True))
    assert pulses.faults(100 + SILENCE_S - 0.1) == {}
    assert list(pulses.faults(100 + SILENCE_S)) == [2]
    pulses.watch([1], 110.0)  # it was ended, and nobody asks for it any more
    pulses.hear(2, 110.0, Beat())
    assert list(pulses.faults(120.0)) == [1]


def test_one_that_computes_and_gets_nowhere_is_stuck() -> None:
    pulses = Pulses()
    pulses.watch([1, 2], 0.0)
    for second in range(int(STALL_S) + 1):
        pulses.hear(1, float(second), Beat(0, 7, computes=True))
        pulses.hear(2, float(second), Beat(0, 7, computes=False))  # it waits for the other
    assert list(pulses.faults(STALL_S)) == [1]


def test_slow_steps_are_no_fault() -> None:
    pulses = Pulses()
    pulses.watch([1], 0.0)
    now = 0.0
    for step in range(1, 6):  # a step takes 8 s
        now = 8.0 * step
        pulses.hear(1, now, Beat(0, step, computes=True))
    for _ in range(20):
        now += 1.5
        pulses.hear(1, now, Beat(0, 5, computes=True))
    assert pulses.faults(now) == {}, "30 s are fewer than five of its steps"
    for _ in range(10):
        now += 1.5
        pulses.hear(1, now, Beat(0, 5, computes=True))
    assert list(pulses.faults(now)) == [1]


def test_deaths_without_progress_are_counted_and_named() -> None:
    endurance = Endurance()
    endurance.progressed(100)
    for _ in range(ATTEMPTS - 1):
        endurance.failed("worker/0 died")
    endurance.progressed(100)  # no further than before: it began again
    with pytest.raises(
        WorkerDied, match="3 processes were lost in a row before the run came any further: worker/0 died"
    ):
        endurance.failed("worker/0 died")


def test_all_who_were_on_a_node_together_die_once() -> None:
    """Five workers on two nodes, of which one goes; then whoever takes their place on the other, twice."""
    endurance = Endurance()
    for number in (0, 2, 4):
        endurance.failed(f"worker/{number} died", "a", number, hired=5)
    endurance.failed("worker/5 died", "b", 5, hired=6)
    endurance.failed("worker/3 died", "b", 3, hired=6)
    with pytest.raises(WorkerDied, match="6 processes were lost in a row"):
        endurance.failed("worker/6 died", "b", 6, hired=7)


def test_progress_forgives() -> None:
    endurance = Endurance()
    for examples in range(1, 20):
        endurance.failed("worker/0 died")
        endurance.failed("worker/1 died")
        endurance.progressed(examples)


# -- who goes on when somebody leaves -------------------------------------------------------------------------------


class Gone:
    """A run that notes who has left."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def left(self, _: Team, worker: Hired) -> None:
        self.numbers.append(worker.number)


def team_of(*endings: Ended, leaving: int) -> tuple[Team, Gone]:
    gone = Gone()
    members = [Hired(number, f"worker/{number}", None) for number in range(3)]
    team = Team(0, members, gone, leaving=[members[leaving]])  # type: ignore[arg-type]
    team.endings = endings
    return team, gone


def numbers(team: Team) -> list[int]:
    return [worker.number for worker in team.members]


def test_the_version_of_one_who_stays_is_taken() -> None:
    team, gone = team_of(ended(0, 1, 5), ended(2, 1, 5), leaving=0)
    team._change()
    assert (numbers(team), gone.numbers) == ([1, 2], [0])
    assert team.newest is not None
    assert team.newest.number == 2


def test_who_alone_has_the_newest_version_hands_it_on_before_he_leaves() -> None:
    team, gone = team_of(ended(0, 1, 5), ended(1, 1, 4), ended(2, 1, 5, has_version=False), leaving=0)
    team._change()
    assert (numbers(team), gone.numbers) == ([1, 2, 0], [])
    assert team.newest is not None
    assert team.newest.number == 0
    team._change()  # nothing has happened in between: it waits for more workers, say
    assert (numbers(team), gone.numbers) == ([1, 2, 0], [])
    team.endings = [ended(0, 1, 5, has_version=False), ended(1, 1, 5)]
    team._change()
    assert (numbers(team), gone.numbers) == ([1, 2], [0])


def test_the_last_to_leave_waits_for_nobody() -> None:
    team, gone = team_of(ended(0, 1, 5), leaving=0)
    team.members = team.members[:1]
    team._change()
    assert (numbers(team), gone.numbers) == ([], [0])
