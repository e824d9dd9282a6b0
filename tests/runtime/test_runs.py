"""Runs on a real Ray: each algorithm to its end, equal on every number of workers, and nothing left behind."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.equivalence.harness import Run, run_all_reduce, run_through_shards
from tests.runtime.runs import finished, gone_soon, spec, start
from trainers import ClusterInfo
from trainers.data.datasets import open_dataset
from trainers.models.registry import build_model

pytestmark = pytest.mark.usefixtures("cluster")


def params(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in sorted(load_file(folder / "model.safetensors").items())])


@pytest.mark.parametrize("transport", ["shared_memory", "process_group"])
def test_sync_has_the_same_bits_on_any_workers_form_and_transport(tmp_path: Path, transport: str) -> None:
    """V = 5 on 1, 2 and 3 workers, through shards or not: the very bits of the local transport."""
    shapes = [(1, "all_reduce"), (3, "all_reduce"), (2, "parameter_server")]
    found = []
    for count, form in shapes:
        train = spec(
            workers={"count": count, "virtual": 5}, algorithm={"name": "sync", "form": form}, transport=transport
        )
        job = f"same-{transport}-{count}-{form}".replace("_", "-")
        run = finished(job, train, tmp_path / job)
        assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
        found.append(params(tmp_path / job))
    data = open_dataset(train.data, train.seed, None)
    local = Run(train, lambda seed: build_model(train.model, data.num_classes, data.image_shape, seed))
    expected = run_through_shards(local)
    named = local.layout.named(expected.params)
    expected_flat = torch.cat([named[name].flatten() for name in sorted(named)])
    for one in found:
        assert torch.equal(one, expected_flat)


@pytest.mark.parametrize("transport", ["shared_memory", "process_group"])
def test_downpour_with_one_worker_has_the_bits_of_the_local_transport(tmp_path: Path, transport: str) -> None:
    train = spec(workers=1, algorithm={"name": "downpour", "max_staleness": 0}, transport=transport)
    run = finished(f"one-{transport}".replace("_", "-"), train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED"
    data = open_dataset(train.data, train.seed, None)
    local = Run(train, lambda seed: build_model(train.model, data.num_classes, data.image_shape, seed))
    named = local.layout.named(run_through_shards(local).params)
    assert torch.equal(params(tmp_path), torch.cat([named[name].flatten() for name in sorted(named)]))


def test_batch_norm_dropout_and_augmentation_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    found = []
    for count in (1, 3):
        train = spec(
            workers={"count": count, "virtual": 3},
            code=str(Path(__file__).parent / "code"),
            model="nets:small_net",
            data={"name": "digits", "limit": 101, "random_crop": 1},
        )
        run = finished(f"norm-{count}", train, tmp_path / str(count))
        assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
        found.append(load_file(tmp_path / str(count) / "model.safetensors"))
    assert any("running_mean" in name for name in found[0])
    for name, tensor in found[0].items():
        assert torch.equal(tensor, found[1][name]), name


def test_downpour_tells_all_that_is_promised_and_leaves_nothing(tmp_path: Path, cluster: ClusterInfo) -> None:
    train = spec(algorithm={"name": "downpour", "max_staleness": 4}, epochs=3, data="digits", batch=16)
    run = finished("told", train, tmp_path)
    kinds = {event.type for event in run.events}
    assert kinds >= {"state", "actors", "step", "epoch", "evaluation", "checkpoint", "result"}
    assert [event.seq for event in run.events] == list(range(1, len(run.events) + 1))
    assert [state["state"] for state in run.of("state")] == ["STARTING", "RUNNING", "SUCCEEDED"]
    last = run.of("step")[-1]
    assert last["examples"] == 3 * 1437
    minibatches = 3 * -(-1437 // 16)
    assert last["step"] == sum(last["staleness"].values()) == minibatches
    assert sum(step["compute_s"] for step in run.of("step")) > 0
    (result,) = run.of("result")
    assert result["test_accuracy"] > 0.8
    assert result["epochs"] == 3
    (actors,) = run.of("actors")
    assert [worker["name"] for worker in actors["workers"]] == ["told/worker/0", "told/worker/1"]
    gone_soon("told", [a["pid"] for a in (*actors["workers"], *actors["shards"], actors["coordinator"])])


def test_cancel_stops_cleanly_with_a_checkpoint_that_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Cancelled somewhere in the middle and taken up again on another number of workers: the undisturbed result."""
    fields = {"workers": {"count": 2, "virtual": 3}, "epochs": 40, "data": "digits", "batch": 8}
    first = start("cut", spec(**fields), tmp_path / "cut")
    first.until(lambda event: event.type == "step" and event.data["examples"] > 1437)
    first.run.cancel()
    assert first.end().data["state"] == "CANCELLED"
    (result,) = first.of("result")
    assert 0 < result["examples"] < 40 * 1437
    gone_soon("cut", [])
    checkpoint = first.of("checkpoint")[-1]
    assert checkpoint["examples"] == result["examples"]
    resumed = {"checkpoint": {"resume": checkpoint["path"]}, "workers": {"count": 3, "virtual": 3}}
    second = finished("resumed", spec(**fields | resumed), tmp_path / "resumed")
    whole = finished("whole", spec(**fields), tmp_path / "whole")
    assert second.of("result")[0]["examples"] == whole.of("result")[0]["examples"] == 40 * 1437
    assert torch.equal(params(tmp_path / "resumed"), params(tmp_path / "whole"))


@pytest.mark.parametrize("algorithm", ["downpour", {"name": "sync", "form": "parameter_server"}])
def test_cancel_and_resume_through_shards_trains_every_example_once(tmp_path: Path, algorithm: object) -> None:
    fields = {"algorithm": algorithm, "epochs": 60, "data": "digits", "batch": 8}
    first = start("cut-ps", spec(**fields), tmp_path / "cut")
    first.until(lambda event: event.type == "step" and event.data["examples"] > 1437)
    first.run.cancel()
    assert first.end().data["state"] == "CANCELLED"
    checkpoint = first.of("checkpoint")[-1]
    rest = spec(**fields | {"checkpoint": {"resume": checkpoint["path"]}})
    second = finished("rest-ps", rest, tmp_path / "rest")
    assert second.events[-1].data["state"] == "SUCCEEDED", second.events[-1]
    assert second.of("step")[-1]["examples"] == 60 * 1437
    assert second.of("result")[0]["test_accuracy"] > 0.9


def test_evaluation_by_the_clock_does_not_change_the_result(tmp_path: Path) -> None:
    fields = {"epochs": 30, "data": "digits", "workers": {"count": 2, "virtual": 3}}
    plain = finished("plain", spec(**fields), tmp_path / "plain")
    often = finished("often", spec(**fields, evaluate={"every_s": 0.2}), tmp_path / "often")
    assert len(often.of("evaluation")) >= len(plain.of("evaluation"))
    assert any(e["examples"] % 1437 for e in often.of("evaluation"))
    assert torch.equal(params(tmp_path / "plain"), params(tmp_path / "often"))


def test_keep_last_and_the_loop_that_the_readme_shows(tmp_path: Path) -> None:
    run = finished("kept", spec(epochs=4, checkpoint={"keep_last": 2}), tmp_path)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert len(run.of("checkpoint")) == 4


def test_local_transport_and_all_reduce_agree(tmp_path: Path) -> None:
    """The harness above is itself held to the all-reduce form."""
    train = spec(workers={"count": 2, "virtual": 3})
    local = Run(train)
    found, expected = run_through_shards(local).params, run_all_reduce(local).params
    assert torch.equal(found[: len(expected)], expected)
