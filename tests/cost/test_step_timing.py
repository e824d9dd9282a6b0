"""Profiles of a step: what is timed, and that two workers' link is timed by the transport of a run."""

import multiprocessing
from multiprocessing import Pipe

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainers.algorithms.spatial.layers import RowModel
from trainers.cost.counting import count_workload
from trainers.cost.plan import PlanRequest, Timed
from trainers.cost.planner import plan_spec
from trainers.cost.profiles import neighbours, step_timing
from trainers.cost.profiles.layer_timer import LayerMarks, medians
from trainers.cost.profiles.link_timing import time_link
from trainers.cost.profiles.neighbours import contention
from trainers.cost.profiles.row_timer import row_seconds
from trainers.cost.profiles.step_timer import steps_of
from trainers.cost.workload import LayerSeconds
from trainers.errors import RunFailed
from trainers.spec import TrainSpec


@pytest.mark.parametrize("algorithm", ["sync", "downpour", "hybrid"])
def test_a_step_is_timed_in_its_parts_and_can_be_planned_with(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timing, "time_link", lambda: (1e-4, 1e9))
    monkeypatch.setattr(step_timing, "neighbours_of", lambda spec: 0)
    spec = TrainSpec.model_validate({"model": "mlp", "data": "digits", "batch": 500, "algorithm": algorithm, "seed": 3})
    done, threads = list[int](), torch.get_num_threads()
    profile = step_timing.profile_step(spec, steps=4, on_step=done.append)  # more steps than an epoch has
    assert done == list(range(1, 8))
    assert torch.get_num_threads() == threads
    assert min(profile.forward.median_s, profile.backward.median_s, profile.update.median_s) > 0
    plan = plan_spec(spec, PlanRequest(profile=type(profile).model_validate_json(profile.model_dump_json())))
    assert plan.device == profile.device
    assert plan.of(1).computing_s > 0
    assert (profile.neighbours, profile.contention) == (0, 1.0)
    assert profile.copied.median_s > 0
    assert set(profile.layers) == {"fc1", "fc2"}
    work = count_workload(spec).model_copy(update={"seconds": profile.layers})
    assert sum(work.backward_shares) == pytest.approx(1.0)


def test_what_has_no_parameters_counts_to_the_layer_before_it() -> None:
    marks = LayerMarks(torch.device("cpu"), [("a", 1.5), ("b", 3.0), ("a", 6.0)], [("b", 7.0)])
    found = marks.seconds(1.0, 5.0, 10.0)  # `a` is called again in the backward pass, to recompute its activities
    assert found == {"a": LayerSeconds(forward_s=2.0, backward_s=3.0), "b": LayerSeconds(forward_s=2.0, backward_s=2.0)}
    assert LayerMarks(torch.device("cpu")).seconds(1.0, 5.0, 10.0) == {}
    assert medians([found, {"a": LayerSeconds(forward_s=4.0, backward_s=5.0)}])["a"].forward_s == 3.0


def test_rows_are_timed_of_models_that_have_some() -> None:
    with steps_of(TrainSpec.model_validate({"model": "lenet5", "data": "digits", "batch": 200, "seed": 3})) as timer:
        found = timer.rows((1, 2), 3)
    assert set(found) == {1, 2}
    assert min(found.values()) > 0
    with steps_of(TrainSpec.model_validate({"model": "mlp", "data": "digits", "batch": 50, "seed": 3})) as timer:
        assert timer.rows((1, 2), 1) == {}


def test_of_two_workers_the_half_of_the_rows_is_timed_that_one_of_them_computes() -> None:
    def counted(parts: int) -> int:
        with FlopCounterMode(display=False) as counter:
            row_seconds(model, images, parts, 1)
        return counter.get_total_flops()

    spec = TrainSpec.model_validate({"model": "lenet5", "data": "digits", "batch": 200, "seed": 3})
    with steps_of(spec) as timer:
        images = torch.zeros(200, 1, 8, 8)
        model = RowModel(timer.setup.replica.model, 8)
        assert counted(2) == counted(1) / 2 > 0


def test_each_layer_is_timed_forward_and_backward() -> None:
    spec = TrainSpec.model_validate({"model": "lenet5", "data": "digits", "batch": 200, "seed": 3})
    with steps_of(spec) as timer:
        found = timer.layers(1)
        whole = timer.forward[-1], timer.backward[-1]
    assert list(found) == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    for part, seconds in zip(("forward_s", "backward_s"), whole, strict=True):
        assert min(getattr(each, part) for each in found.values()) > 0
        assert sum(getattr(each, part) for each in found.values()) == pytest.approx(seconds)


def test_one_disturbed_step_moves_neither_mean_nor_spread() -> None:
    assert step_timing.timed([1.0] * 19 + [50.0]) == Timed(median_s=1.0, spread_s=0.0, mean_s=1.0)
    assert step_timing.timed([1.0] * 19 + [1.8]) == Timed(median_s=1.0, spread_s=0.0, mean_s=1.04)
    assert step_timing.timed([2.0]) == Timed(median_s=2.0, mean_s=2.0)


@pytest.mark.long  # starts two processes with torch
def test_the_link_between_two_workers() -> None:
    latency_s, bytes_per_s = time_link()
    assert latency_s > 0
    assert bytes_per_s > 0


@pytest.mark.long  # starts processes with torch
def test_steps_are_timed_beside_others_and_without_by_turns() -> None:
    spec = TrainSpec.model_validate({"model": "mlp", "data": "digits", "batch": 500, "seed": 3})
    with steps_of(spec) as timer:
        assert contention(timer, spec, 2, steps=6) >= 1.0
        assert len(timer.seconds) == 2
    assert not multiprocessing.active_children()


def test_a_neighbour_that_dies_is_told() -> None:
    mine, theirs = Pipe()
    theirs.close()
    with pytest.raises(RunFailed, match="is there memory for both"):
        neighbours._await(mine)


def test_workers_with_gpus_of_their_own_have_no_neighbours() -> None:
    spec = TrainSpec.model_validate({"model": "mlp", "data": "digits", "device": "cuda", "workers": {"gpus": 1}})
    assert neighbours.neighbours_of(spec) == 0
