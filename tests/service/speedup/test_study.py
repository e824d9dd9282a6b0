"""A job on several numbers of workers: what is compared with what, what is left unknown, and what is refused."""

from pathlib import Path

import pytest

from service import JobSpec, Plan, SpecInvalid
from service.speedup.page import study_page
from service.speedup.picture import study_picture
from service.speedup.study import AXIS, Study, study_of, study_sweep
from service.status import Status
from service.sweeps import control
from service.sweeps.trial_store import Ending, TrialStore
from trainers import Event, State
from trainers.cost.plan import Candidate
from trainers.runtime.event_log import FILE_NAME

JOB = {"name": "mine", "data": "digits", "model": "mlp", "batch": 16, "workers": 1, "epochs": 4}
DOWNPOUR = JobSpec.model_validate(JOB | {"algorithm": "downpour"})


def plan(rates: dict[int, float]) -> Plan:
    """With these rates; nothing else of it is read."""
    rest = {
        "nodes": 1, "speed_up": 1.0, "efficiency": 1.0, "step_s": 1.0, "computing_s": 1.0, "data_s": 0.0,
        "waiting_s": 0.0, "exchanges": (), "bottleneck": "", "without_bottleneck": 1.0, "next_bottleneck": "",
    }  # fmt: skip
    found = tuple(Candidate(workers=count, examples_per_s=rate, **rest) for count, rate in rates.items())
    return Plan(
        model="mlp", example="1x8x8", algorithm="downpour", per_worker=16, parameters=100, cluster="this machine",
        device="cpu", basis="20 steps timed", shards=1, memory_bytes=None, device_bytes=None, candidates=found,
        corner=None, recommended=1, reason="",
    )  # fmt: skip


def ran(folder: Path, until: str | None, runs: dict[int, list[tuple[float, int, float]]]) -> TrialStore:
    """A sweep whose trials have ended: by number of workers, second, examples and accuracy of each evaluation."""
    store = control.begin(folder, "sweep-1", study_sweep(DOWNPOUR, list(runs), until))
    for row in store.trials():
        evaluations = runs[int(str(row.settings[AXIS]))]
        log = [(0.0, "step", {"loss": 2.0})]
        for number, (second, examples, accuracy) in enumerate(evaluations, 1):
            data = {"epoch": number, "examples": examples, "test_accuracy": accuracy}
            log.append((second, "evaluation", data))
        seconds, examples, accuracy = evaluations[-1]
        log.append((seconds, "result", {"examples_per_s": examples / seconds, "wall_s": seconds + 9}))
        run_dir = store.run_dir(row.id)
        run_dir.mkdir(parents=True)
        events = [Event(seq=seq, time=time, type=kind, data=data) for seq, (time, kind, data) in enumerate(log, 1)]
        (run_dir / FILE_NAME).write_text("".join(event.model_dump_json() + "\n" for event in events))
        store.begin(row.id)
        store.finish(row.id, Ending.of(Status(State.SUCCEEDED, "Done", "done")), error=1 - accuracy)
    return store


RUNS = {1: [(10.0, 1000, 0.6), (20.0, 2000, 0.9)], 2: [(6.0, 1000, 0.5), (12.0, 2000, 0.85)]}


def test_measured_and_predicted_stand_side_by_side(tmp_path: Path) -> None:
    study = study_of(DOWNPOUR, [1, 2, 4], ran(tmp_path, "accuracy=0.8", RUNS), plan({1: 110, 2: 200, 4: 300}), cores=2)
    one, two, four = study.rows
    assert (one.examples_per_s, one.predicted_per_s, one.speed_up) == (100, 110, 1)
    assert one.off == pytest.approx(0.1)
    assert two.speed_up == pytest.approx(20 / 12)
    assert two.efficiency == pytest.approx(10 / 12)
    assert (two.predicted_speed_up, four.predicted_speed_up) == (pytest.approx(200 / 110), pytest.approx(300 / 110))
    assert (two.target_s, two.improvement, two.predicted_target_s) == (12, pytest.approx(20 / 12), 10)
    assert (four.state, four.examples_per_s, four.speed_up, four.predicted_target_s) == ("NOT RUN", None, None, None)
    assert study.notes[1:] == ("4 workers share 2 cores: their rates say what this machine has, not what more would",)


def test_a_target_that_no_run_reached_is_not_guessed(tmp_path: Path) -> None:
    text = study_page(study_of(DOWNPOUR, [1, 2], ran(tmp_path, "accuracy=0.99", RUNS), plan({1: 110, 2: 200}), cores=2))
    assert "## Time to an error of 1.00 %" in text
    assert text.count("| not reached | unknown | - | - |") == 2


def test_without_a_run_only_the_prediction_is_told() -> None:
    study = study_of(DOWNPOUR, [1, 2], None, plan({1: 110, 2: 200}), cores=2)
    text = study_page(study)
    assert "| 2 | 16 | - | 200 | - | - | 1.82 | - | not run |" in text
    assert "Error and time" not in text
    assert study_picture(study)["png"].startswith(b"\x89PNG")


def test_without_a_prediction_only_the_runs_are_told(tmp_path: Path) -> None:
    study = study_of(DOWNPOUR, [1, 2], ran(tmp_path, None, RUNS), None, cores=2)
    assert [row.predicted_per_s for row in study.rows] == [None, None]
    assert "| 2 | 16 | 15.00 % | 12.0 | 1.67 |" in study_page(study)
    assert "| median error | time, s |" in study_page(study)
    assert "The median error is that over the evaluations of a run's last 5 epochs." in study_page(study)
    assert Study.model_validate_json(study.model_dump_json()) == study


def test_a_batch_that_grows_with_the_workers_is_told() -> None:
    study = study_of(JobSpec.model_validate(JOB | {"algorithm": "sync"}), [1, 2], None, plan({1: 1.0}), cores=2)
    assert [row.batch for row in study.rows] == [16, 32]
    assert study.notes == ("the batch grows with the workers, and the error with it; workers.virtual fixes it",)
    fixed = JobSpec.model_validate(JOB | {"algorithm": "sync", "workers": {"count": 1, "virtual": 4}})
    assert [row.batch for row in study_of(fixed, [1, 2], None, None, cores=2).rows] == [64, 64]


@pytest.mark.parametrize(("fc_batch", "told"), [("whole", "the same"), ("per_turn", "16 in each turn")])
def test_hybrid_tells_both_batches(fc_batch: str, told: str) -> None:
    algorithm = {"name": "hybrid", "scheme": "b", "fc_batch": fc_batch}
    job = JobSpec.model_validate(JOB | {"workers": {"count": 1, "virtual": 4}, "algorithm": algorithm})
    (note,) = study_of(job, [1, 2], None, None, cores=2).notes
    assert note == f"hybrid: the convolutions are updated by 64 examples, the fully connected layers by {told}"


@pytest.mark.parametrize(
    ("until", "message"),
    [
        ("accuracy", "no target"), ("=3", "no target"), ("loss=low", "no target"), ("loss=nan", "no target"),
        ("accuracy=1.5", "between 0 and 1"), ("error=0", "between 0 and 1"),
    ],
)  # fmt: skip
def test_what_is_no_target_is_refused(until: str, message: str) -> None:
    with pytest.raises(SpecInvalid, match=message) as caught:
        study_sweep(DOWNPOUR, [1], until)
    assert [error.pointer for error in caught.value.errors] == ["/until"]


def test_another_metric_has_its_own_direction() -> None:
    sweep = study_sweep(DOWNPOUR, [1, 2], "loss=0.3")
    assert (sweep.report.metric, sweep.report.target, sweep.limits.concurrent) == ("loss", 0.3, 1)
