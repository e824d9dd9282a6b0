"""Which actors hang: decided from what they and the system say, without a machine."""

import pytest

from trainers.elastic.heartbeat import (
    BEAT_S,
    BUSY_TIMES,
    DEAF_S,
    FIRST_STEP_S,
    SILENCE_S,
    STALL_S,
    Heartbeat,
    HeartbeatHistory,
    OwnTime,
)

READ_WITHIN_S = 300.0


class Actor:
    """One that is asked every BEAT_S."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.cpu_s = 7.0
        self.history = HeartbeatHistory(self.now_s, self.now_s)

    def answers(self, seconds: float, step: int = 0, *, computes: bool = True, busy: bool = False) -> None:
        """It answers for so long, in the same step."""
        for _ in range(round(seconds / BEAT_S)):
            self._passes(busy)
            self.history.hear(self.now_s, Heartbeat(0, step, computes, self.cpu_s))

    def is_silent(self, seconds: float, *, busy: bool = False, stopped: bool = False) -> None:
        """It does not, and somebody looks at its process."""
        for _ in range(round(seconds / BEAT_S)):
            self._passes(busy)
            if self.history.is_silent(self.now_s):
                self.history.see(self.now_s, stopped, self.cpu_s)

    def steps(self, count: int, seconds: float) -> None:
        """It makes steps that take so long."""
        for _ in range(count):
            self.answers(seconds, self.history.beat.begun + 1, busy=True)

    @property
    def fault(self) -> str | None:
        return self.history.fault(self.now_s, READ_WITHIN_S)

    def _passes(self, busy: bool) -> None:
        self.now_s += BEAT_S
        self.cpu_s += 0.5 * BEAT_S if busy else 0.001  # its answers cost something, too


def test_a_process_that_is_stopped_is_found_at_once() -> None:
    actor = Actor()
    actor.answers(6)
    actor.is_silent(SILENCE_S + BEAT_S, stopped=True)
    assert actor.fault == "did not answer for 6.0 s: its process is stopped"


@pytest.mark.parametrize("turns", [1, 2, 4, 8, 64])
def test_who_has_its_turn_less_often_is_judged_so_much_later(turns: int) -> None:
    """Between two turns nothing is known of what it did, however long that is."""
    turn_s = (turns - 1) * BEAT_S
    history = HeartbeatHistory(0.0, 0.0, turn_s=turn_s)
    for step in range(1, 20):
        now_s = step * turns * BEAT_S
        for since_s in (0.5, 0.9, 1.0):  # each answer comes within its turn
            assert history.fault(now_s - turns * BEAT_S * (1 - since_s), READ_WITHIN_S) is None
        history.hear(now_s, Heartbeat(0, step, True, 7.0))
    assert history.fault(now_s + turn_s + SILENCE_S - 0.1, READ_WITHIN_S) is None
    history.see(now_s + turn_s + SILENCE_S, True, 7.0)
    assert str(history.fault(now_s + turn_s + SILENCE_S, READ_WITHIN_S)).endswith("its process is stopped")
    history.is_stopped = False
    assert history.fault(now_s + turn_s + DEAF_S - 0.1, READ_WITHIN_S) is None
    assert str(history.fault(now_s + turn_s + DEAF_S, READ_WITHIN_S)).endswith("nor use CPU time")


def test_a_process_that_was_stopped_for_a_moment_is_left_alone() -> None:
    actor = Actor()
    actor.is_silent(SILENCE_S + BEAT_S, stopped=True)
    actor.answers(BEAT_S)
    assert actor.fault is None


def test_code_that_holds_the_lock_of_python_and_computes_is_left_alone() -> None:
    actor = Actor()
    actor.answers(6)
    actor.is_silent(10 * DEAF_S, busy=True)
    assert actor.fault is None


def test_one_that_neither_answers_nor_computes_hangs_but_not_soon() -> None:
    actor = Actor()
    actor.answers(6)
    actor.is_silent(DEAF_S - BEAT_S)
    assert actor.fault is None
    actor.is_silent(BEAT_S)
    assert actor.fault == "did not answer for 60.0 s, nor use CPU time"


def test_a_first_step_may_take_minutes() -> None:
    assert FIRST_STEP_S >= 300
    actor = Actor()
    actor.answers(FIRST_STEP_S - 2 * BEAT_S, 1)
    assert actor.fault is None
    actor.answers(4 * BEAT_S, 1)
    assert actor.fault is not None


def test_one_that_stays_in_a_step_without_computing_is_stuck() -> None:
    actor, waits = Actor(), Actor()
    for one in (actor, waits):
        one.steps(5, 1.5)
    actor.answers(STALL_S + BEAT_S, actor.history.beat.begun)
    waits.answers(STALL_S + BEAT_S, actor.history.beat.begun, computes=False)
    assert "nor used CPU time" in str(actor.fault)
    assert waits.fault is None, "it waits for the other"


def test_five_usual_steps_are_no_fault() -> None:
    actor = Actor()
    actor.steps(5, 9)
    actor.answers(36, actor.history.beat.begun)
    assert actor.fault is None
    actor.answers(12, actor.history.beat.begun)
    assert actor.fault is not None


def test_a_step_counts_as_long_as_it_computed_though_it_waits_at_its_end() -> None:
    """A heartbeat may hear a worker while it pushes, and then a step that was slow until then must not seem short."""
    actor = Actor()
    actor.answers(12, 1)
    actor.answers(BEAT_S, 1, computes=False)
    actor.answers(12, 2)
    assert actor.fault is None


def test_what_came_before_a_step_is_no_part_of_it() -> None:
    actor = Actor()
    actor.answers(60, 0)
    actor.answers(BEAT_S, 1)
    actor.answers(STALL_S + BEAT_S, 2)
    assert actor.fault == "made no step for 10.5 s, nor used CPU time"


def test_one_that_computes_on_and_on_in_a_step_goes_in_circles_only_after_many_usual_ones() -> None:
    quick, slow = Actor(), Actor()
    quick.steps(5, 1.5)
    slow.steps(5, 60)
    for actor in (quick, slow):
        actor.answers(FIRST_STEP_S - 60, actor.history.beat.begun, busy=True)
        assert actor.fault is None
        actor.answers(60 + BEAT_S, actor.history.beat.begun, busy=True)
    assert quick.fault is not None
    assert slow.fault is None
    slow.answers(BUSY_TIMES * 60 - FIRST_STEP_S, slow.history.beat.begun, busy=True)
    assert slow.fault is not None


def test_one_that_reads_an_example_for_too_long_is_told_by_its_number() -> None:
    actor = Actor()
    actor.history.hear(actor.now_s, Heartbeat(example=57, reading_s=READ_WITHIN_S - 1))
    assert actor.fault is None
    actor.history.hear(actor.now_s, Heartbeat(example=57, reading_s=READ_WITHIN_S + 1))
    assert actor.fault == "did not read example 57 of the dataset within 300 s"


def test_a_judge_that_did_not_run_blames_nobody() -> None:
    real_s = [0.0]
    clock = OwnTime(2 * BEAT_S, lambda: real_s[0])
    for _ in range(10):
        real_s[0] += BEAT_S
        clock.read()
    assert clock.read() == 10 * BEAT_S
    real_s[0] += 3600  # it was stopped
    assert clock.read() == 12 * BEAT_S
