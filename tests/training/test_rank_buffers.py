"""Buffers of any type belong to the virtual rank: kept, moved, rolled back, averaged."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.local_runs import LocalRun
from tests.training.usernets import Remembers
from trainers.errors import SpecRejected
from trainers.models.module_buffers import in_common
from trainers.models.weights import load_weights
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint
from trainers.training.setup import check, set_up

REMEMBERS = "tests.training.usernets:remembers"


def spec(count: int, **fields: object) -> TrainSpec:
    usual = {"model": REMEMBERS, "data": {"name": "digits", "limit": 61}, "batch": 4, "epochs": 2, "seed": 2}
    return TrainSpec.model_validate(usual | {"workers": {"count": count, "virtual": 3}} | fields)


def trained(count: int, folder: Path, **fields: object) -> Path:
    return LocalRun(spec(count, **fields), folder).train()


def test_buffers_of_all_types_have_the_same_bits_on_any_number_of_workers(tmp_path: Path) -> None:
    one, *others = [read_checkpoint(trained(count, tmp_path / f"{count}")) for count in (1, 2, 3)]
    for other in others:
        assert_same(one.model, other.model)
        for rank in range(3):
            assert_same(one.buffers[rank], other.buffers[rank])
    assert {rank: int(named["seen"]) for rank, named in one.buffers.items()} == {0: 42, 1: 40, 2: 40}  # of 2 x 61
    assert one.buffers[0]["odd"].tolist() == [False] * 3  # after 12 steps
    assert one.buffers[0]["coarse"].tolist() == [12.0] * 3


def test_a_run_goes_on_with_them_from_a_checkpoint(tmp_path: Path) -> None:
    whole = read_checkpoint(trained(2, tmp_path / "whole"))
    half = trained(3, tmp_path / "half", epochs=1)
    rest = read_checkpoint(trained(1, tmp_path / "rest", checkpoint={"resume": str(half)}))
    assert_same(whole.model, rest.model)
    for rank in range(3):
        assert_same(whole.buffers[rank], rest.buffers[rank])


def test_evaluation_has_the_mean_of_floating_ones_and_the_first_ranks_others(tmp_path: Path) -> None:
    folder = trained(2, tmp_path / "run")
    ranks = read_checkpoint(folder).buffers
    found = in_common(ranks)
    assert torch.equal(found["average"], torch.stack([ranks[rank]["average"] for rank in range(3)]).mean(0))
    assert int(found["seen"]) == int(ranks[0]["seen"])
    assert torch.equal(found["table"], ranks[2]["table"])
    Remembers(10).load_state_dict(load_weights(folder / "model.safetensors"))  # no more and no less than it has


def test_a_model_that_changes_the_shape_of_a_buffer_is_refused() -> None:
    setup = set_up(spec(1, model="tests.training.usernets:grows"), None)
    with pytest.raises(SpecRejected, match="the buffer history was"):
        check(setup)


def test_an_asynchronous_worker_keeps_its_own(tmp_path: Path) -> None:
    found = read_checkpoint(trained(1, tmp_path / "run", algorithm="downpour", workers=1, ps=1))
    assert int(found.buffers[0]["seen"]) == 2 * 61


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype, name
        assert torch.equal(value, other[name]), name
