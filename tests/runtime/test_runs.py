"""Runs on a real Ray: each algorithm to its end, equal to the local transport, and nothing left behind."""

import statistics
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.equivalence.harness import Run, run_all_reduce, run_through_shards
from tests.faults.test_workers import spec as normalised
from tests.runtime.runs import changes, finished, gone_soon, spec, start
from trainers import ClusterInfo, SpecRejected, TrainSpec, train
from trainers.data.datasets import open_dataset
from trainers.models.products.choice import UNMEASURED, Choice
from trainers.models.registry import build_model

pytestmark = pytest.mark.usefixtures("cluster")


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def on_the_local_transport(train: TrainSpec, products: Choice = UNMEASURED, **options: int) -> dict[str, torch.Tensor]:
    """The parameters of the same spec, trained in this process. products: those of the run, where layers are so large
    that it measures them."""
    data = open_dataset(train.data, train.seed, None)
    local = Run(train, lambda seed: build_model(train.model, data.facts.classes, data.facts.inputs, seed), products)
    outcome = (run_through_shards if train.algorithm.traits.uses_parameter_server else run_all_reduce)(local, **options)
    return local.layout.named(outcome.params)


def assert_same_bits(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("count", "form", "transport"),
    [
        (3, "all_reduce", "shared_memory"),
        pytest.param(2, "parameter_server", "shared_memory", marks=pytest.mark.long),
        pytest.param(2, "all_reduce", "process_group", marks=pytest.mark.long),
        (1, "parameter_server", "process_group"),
        (2, "parameter_server", "object_store"),
        pytest.param(1, "all_reduce", "shared_memory", marks=pytest.mark.slow),
        pytest.param(3, "parameter_server", "process_group", marks=pytest.mark.slow),
    ],
)
def test_sync_has_the_same_bits_on_any_workers_form_and_transport(
    tmp_path: Path, count: int, form: str, transport: str
) -> None:
    """V = 5: the very bits of one local worker, whose form the equivalence tests hold to serial SGD."""
    fields = {"algorithm": {"name": "sync", "form": form}, "transport": transport}
    run = finished(f"same-{count}-{form}-{transport}", spec(workers={"count": count, "virtual": 5}, **fields), tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    assert_same_bits(parameters(tmp_path), on_the_local_transport(spec(workers={"count": 1, "virtual": 5})))


@pytest.mark.parametrize(
    "transport",
    [
        "shared_memory",
        pytest.param("process_group", marks=pytest.mark.slow),
        pytest.param("object_store", marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_what_is_kept_of_each_epoch_is_what_the_epoch_ended_with(tmp_path: Path, transport: str) -> None:
    """Epochs of a few milliseconds: the next is long under way when the coordinator hears of the end of one."""
    kept = []
    for form, by in (("all_reduce", "shared_memory"), ("parameter_server", transport)):
        fields = {"algorithm": {"name": "sync", "form": form}, "transport": by, "epochs": 12}
        fields |= {"checkpoint": {"every_epochs": 1, "keep_last": 100}, "workers": {"count": 2, "virtual": 5}}
        plan, folder = tmp_path / f"plan-{form}", tmp_path / form
        finished(f"kept-{form}-{transport}", normalised(plan, pause_s=0, **fields), folder)
        found = sorted((folder / "checkpoints").iterdir())
        kept.append({place.name: load_file(place / "model.safetensors") for place in found})
    whole, through_shards = kept
    assert len(whole) == 12
    assert through_shards.keys() == whole.keys()
    for place, expected in whole.items():
        assert_same_bits(through_shards[place], expected)


@pytest.mark.parametrize(
    ("count", "all_reduce", "transport"),
    [
        (3, "auto", "shared_memory"),
        pytest.param(2, "ring", "process_group", marks=pytest.mark.long),
        pytest.param(3, "auto", "process_group", marks=pytest.mark.slow),
        pytest.param(2, "ring", "shared_memory", marks=pytest.mark.slow),
        pytest.param(3, "library", "process_group", marks=pytest.mark.slow),
    ],
)
def test_the_fast_reduction_gives_what_the_canonical_gives(
    tmp_path: Path, count: int, all_reduce: str, transport: str
) -> None:
    """Several virtual workers a worker, several buckets, snapshots between the epochs."""
    algorithm = {"name": "sync", "reduction": "fast", "all_reduce": all_reduce, "bucket_bytes": 2000}
    train = spec(workers={"count": count, "virtual": 5}, algorithm=algorithm, transport=transport)
    run = finished(f"fast-{count}-{all_reduce}-{transport}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    assert sum(step["sent_bytes"] for step in run.of("step")) > 0
    found = parameters(tmp_path)
    for name, tensor in on_the_local_transport(spec(workers={"count": 1, "virtual": 5})).items():
        torch.testing.assert_close(found[name], tensor, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("form", "transport"),
    [
        ({"form": "consensus", "steps": 3}, "shared_memory"),
        pytest.param({"form": "averaging"}, "shared_memory", marks=pytest.mark.slow),
        pytest.param({"form": "consensus", "steps": 3}, "process_group", marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_admm_has_the_bits_of_the_local_transport(tmp_path: Path, form: dict[str, object], transport: str) -> None:
    train = spec(workers={"count": 2, "virtual": 3}, algorithm={"name": "admm", **form}, transport=transport)
    run = finished(f"admm-{form['form']}-{transport}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train))


@pytest.mark.parametrize(
    ("count", "transport", "options"),
    [
        pytest.param(2, "shared_memory", {"scheme": "c"}, marks=pytest.mark.long),
        (3, "process_group", {"scheme": "bc", "split": "outputs", "fc_batch": "per_turn"}),
        pytest.param(3, "shared_memory", {"scheme": "b"}, marks=pytest.mark.slow),
        pytest.param(2, "process_group", {"scheme": "b", "connect": {"blocks": 3}}, marks=pytest.mark.long),
        pytest.param(3, "process_group", {"connect": {"blocks": 2, "rank": 5}}, marks=pytest.mark.long),
    ],
)
def test_hybrid_has_the_bits_of_the_local_transport(
    tmp_path: Path, count: int, transport: str, options: dict[str, object]
) -> None:
    """On the same number of workers; the equivalence tests hold the local one to serial SGD."""
    fields = {"algorithm": {"name": "hybrid", **options}, "model": "lenet5", "transport": transport}
    train = spec(workers={"count": count, "virtual": 5}, **fields)
    run = finished(f"hybrid-{count}-{transport}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train))


@pytest.mark.parametrize(
    ("count", "transport"),
    [(2, "shared_memory"), pytest.param(2, "process_group", marks=pytest.mark.long)],
)
def test_spatial_has_the_bits_of_the_local_transport(tmp_path: Path, count: int, transport: str) -> None:
    """On the same number of workers, which tell what travelled of their halos."""
    fields = {"algorithm": "spatial", "model": "lenet5", "transport": transport}
    train = spec(workers={"count": count, "virtual": 5, "max": 2}, **fields)
    run = finished(f"spatial-{count}-{transport}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train))
    conv1, conv2 = 2 * 2 * 8, 2 * 2 * 6 * 4  # two rows each way, of which only the second layer's have gradients
    assert sum(step["halo_bytes"] for step in run.of("step")) == 4 * 2 * 203 * (conv1 + 2 * conv2)


@pytest.mark.parametrize(
    ("count", "shuffle", "transport"),
    [
        pytest.param(2, "full", "shared_memory", marks=pytest.mark.long),
        (3, "full", "process_group"),
        pytest.param(3, "exchange", "shared_memory", marks=pytest.mark.slow),
    ],
)
def test_parallel_sgd_has_the_bits_of_the_local_transport(
    tmp_path: Path, count: int, shuffle: str, transport: str
) -> None:
    """From a start that is sorted by label; what the events tell of moved examples is what moved there. On three
    workers the first epoch averages every step."""
    algorithm = {"name": "parallel_sgd", "average_every": 4, "shuffle": shuffle, "start": "sorted"}
    algorithm["local_after"] = count - 2
    train = spec(workers={"count": count, "virtual": 3}, algorithm=algorithm, transport=transport)
    run = finished(f"parallel-{count}-{shuffle}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train))
    data = open_dataset(train.data, train.seed, None)
    local = Run(train, lambda seed: build_model(train.model, data.facts.classes, data.facts.inputs, seed))
    moved = run_all_reduce(local).traffic.shuffled_bytes
    assert sum(step["shuffled_bytes"] for step in run.of("step")) == moved > 0


@pytest.mark.parametrize("transport", ["shared_memory", pytest.param("process_group", marks=pytest.mark.long)])
def test_downpour_with_one_worker_has_the_bits_of_the_local_transport(tmp_path: Path, transport: str) -> None:
    train = spec(workers=1, algorithm={"name": "downpour", "max_staleness": 0}, transport=transport)
    run = finished(f"one-{transport}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train))


@pytest.mark.parametrize("transport", ["shared_memory", pytest.param("process_group", marks=pytest.mark.slow)])
def test_mixed_with_one_group_has_the_bits_of_the_local_transport(tmp_path: Path, transport: str) -> None:
    """`group: node` on one node: two workers are one group, of which the first alone talks to the shards."""
    algorithm = {"name": "mixed", "max_staleness": 2, "num_push": 2, "num_fetch": 2}
    train = spec(workers=2, algorithm=algorithm, transport=transport)
    run = finished(f"mixed-{transport}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    assert run.of("step")[-1]["examples"] == 2 * 203
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train, lease_size=12))


def test_local_steps_of_one_group_have_the_bits_of_the_local_transport(tmp_path: Path) -> None:
    """Two workers make rounds of two steps together, of which the first pushes what they changed."""
    algorithm = {"name": "mixed", "group": 2, "max_staleness": 0, "push": "delta", "steps": 2, "outer": "nesterov"}
    train = spec(workers=2, algorithm=algorithm, optimizer="adamw")
    run = finished("groups", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    assert run.of("step")[-1]["examples"] == 2 * 203
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train, lease_size=12))


@pytest.mark.long
def test_batch_norm_dropout_and_augmentation_do_not_depend_on_the_workers(tmp_path: Path) -> None:
    """A user's own model, on 2 workers and on 1, and through shards: parameters and running statistics. With the whole
    recipe, so that all of it reaches the shards: scaled decay, what does not decay, the rate before."""
    fields = {"code": str(Path(__file__).parent / "code"), "model": "nets:small_net"}
    fields |= {"data": {"name": "digits", "limit": 101, "random_crop": 1, "horizontal_flip": True, "mixup": 0.3}}
    fields |= {"optimizer": {"name": "momentum", "lr": 0.01, "weight_decay": 0.01, "equation": 10}}
    fields |= {"batch": {"per_worker": 7, "base": 4}, "scaling": {"name": "sqrt", "weight_decay": "exact"}}
    fields |= {"warmup": {"name": "gradual", "epochs": 1}, "schedule": "krizhevsky"}
    found = []
    for count, form in ((1, "all_reduce"), (2, "all_reduce"), (2, "parameter_server")):
        train = spec(workers={"count": count, "virtual": 3}, algorithm={"name": "sync", "form": form}, **fields)
        folder = tmp_path / f"{count}-{form}"
        run = finished(f"norm-{count}-{form}", train, folder)
        assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
        found.append(parameters(folder))
    assert any("running_mean" in name for name in found[0])
    assert_same_bits(found[0], found[1])
    assert_same_bits(found[0], found[2])


@pytest.mark.long
def test_statistics_computed_anew_go_into_evaluation_and_model_and_leave_the_training_alone(tmp_path: Path) -> None:
    fields = {"code": str(Path(__file__).parent / "code"), "model": "nets:small_net", "workers": {"count": 1}}
    plain = finished("running", spec(**fields), tmp_path / "running")
    anew = finished("anew", spec(**fields, evaluate={"recompute_statistics": 5}), tmp_path / "anew")
    one, other = parameters(tmp_path / "running"), parameters(tmp_path / "anew")
    moved = {name for name, tensor in one.items() if not torch.equal(tensor, other[name])}
    assert {name.rpartition(".")[2] for name in moved} >= {"running_mean", "running_var"}
    assert all("running_" in name or "num_batches" in name for name in moved)
    assert plain.of("result")[0]["test_loss"] != anew.of("result")[0]["test_loss"]


def test_downpour_tells_all_that_is_promised_and_leaves_nothing(tmp_path: Path, cluster: ClusterInfo) -> None:
    train = spec(
        algorithm={"name": "downpour", "max_staleness": 4}, epochs=4, data="digits", batch=4
    )  # long enough for rates
    run = finished("log", train, tmp_path)
    kinds = {event.type for event in run.events}
    assert kinds >= {"state", "actors", "step", "epoch", "evaluation", "checkpoint", "result"}
    assert [event.seq for event in run.events] == list(range(1, len(run.events) + 1))
    assert changes(state["state"] for state in run.of("state")) == ["STARTING", "RUNNING", "SUCCEEDED"]
    last = run.of("step")[-1]
    assert last["examples"] == 4 * 1437
    assert last["step"] == sum(last["staleness"].values()) == 4 * -(-1437 // 4)
    assert sum(step["compute_s"] for step in run.of("step")) > 0
    timed = [sum(sum(step[call].values()) for step in run.of("step")) for call in ("fetch_latency", "push_latency")]
    assert timed == [sum(step[call] for step in run.of("step")) for call in ("fetches", "pushes")]
    (result,) = run.of("result")
    assert result["test_accuracy"] > 0.8
    assert result["epochs"] == 4
    errors = [1 - evaluation["test_accuracy"] for evaluation in run.of("evaluation")]
    assert result["test_error_median"] == statistics.median(errors)
    assert len(list((tmp_path / "checkpoints").iterdir())) <= train.checkpoint.keep_last
    (actors,) = run.of("actors")
    assert [worker["name"] for worker in actors["workers"]] == ["log/worker/0", "log/worker/1"]
    assert (result["fetch_latency"]["count"], result["push_latency"]["count"]) == tuple(timed)
    assert {"worker/0", "worker/1", "shard/0", "coordinator"} <= {
        name for used in run.of("usage") for name in used["actors"]
    }
    assert all(size > 10 for used in run.of("usage") for size in used["memory_mb"])
    gone_soon("log", [a["pid"] for a in (*actors["workers"], *actors["shards"], actors["coordinator"])])


@pytest.mark.parametrize(
    "algorithm",
    [
        "sync",
        pytest.param({"name": "admm", "form": "consensus", "steps": 7}, marks=pytest.mark.slow),
        pytest.param({"name": "parallel_sgd", "start": "sorted"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_cancel_stops_cleanly_with_a_checkpoint_that_goes_on_bit_for_bit(tmp_path: Path, algorithm: object) -> None:
    """Cancelled somewhere in the middle and taken up again on another number of workers: the undisturbed result."""
    fields = {
        "workers": {"count": 2, "virtual": 3},
        "epochs": 25,
        "data": "digits",
        "batch": {"per_worker": 8, "base": 8},
    }
    rule = {"name": "momentum", "lr": 0.007, "weight_decay": 0.001, "equation": 10}
    fields |= {"optimizer": rule, "scaling": "linear", "warmup": "gradual", "schedule": "cosine"}
    fields["algorithm"] = algorithm
    first = start("cut", spec(**fields), tmp_path / "cut")
    first.until(lambda event: event.type == "step" and event.data["examples"] > 1437)
    first.run.cancel()
    assert first.end().data["state"] == "CANCELLED"
    (result,) = first.of("result")
    assert 0 < result["examples"] < 25 * 1437
    gone_soon("cut", [])
    checkpoint = first.of("checkpoint")[-1]
    assert checkpoint["examples"] == result["examples"]
    resumed = {"checkpoint": {"resume": checkpoint["path"]}, "workers": {"count": 3, "virtual": 3}}
    second = finished("resumed", spec(**fields | resumed), tmp_path / "resumed")
    assert second.of("result")[0]["examples"] == 25 * 1437
    assert_same_bits(parameters(tmp_path / "resumed"), on_the_local_transport(spec(**fields)))


def test_a_folder_with_a_run_in_it_is_not_trained_into(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(SpecRejected, match="holds a run already"):
        train(spec(), run_dir=tmp_path)


@pytest.mark.parametrize(
    "algorithm",
    [
        "downpour",
        pytest.param({"name": "sync", "form": "parameter_server"}, marks=pytest.mark.slow),
        pytest.param({"name": "mixed", "group": 2, "num_push": 2}, marks=pytest.mark.slow),
        pytest.param(
            {"name": "mixed", "group": 2, "push": "delta", "steps": 4, "outer": "average"}, marks=pytest.mark.slow
        ),
        pytest.param({"name": "sync", "form": "parameter_server", "backup": 1}, marks=pytest.mark.slow),
        pytest.param({"name": "downpour", "push": "layerwise", "bucket_bytes": 4096}, marks=pytest.mark.slow),
        pytest.param({"name": "downpour", "push": "layerwise", "backprop": {"groups": 2}}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_cancel_and_resume_through_shards_trains_every_example_once(tmp_path: Path, algorithm: object) -> None:
    fields = {"algorithm": algorithm, "epochs": 12, "data": "digits", "batch": 8, "workers": 2}
    if isinstance(algorithm, dict) and ("group" in algorithm or "backup" in algorithm):
        fields["workers"] = 4
    first = start("cut-ps", spec(**fields | {"epochs": 1000}), tmp_path / "cut")  # it is not to end meanwhile
    first.until(lambda event: event.type == "step" and event.data["examples"] > 1437)
    first.run.cancel()
    assert first.end().data["state"] == "CANCELLED"
    checkpoint = first.of("checkpoint")[-1]
    second = finished("rest-ps", spec(**fields | {"checkpoint": {"resume": checkpoint["path"]}}), tmp_path / "rest")
    assert second.events[-1].data["state"] == "SUCCEEDED", second.events[-1]
    assert second.of("step")[-1]["examples"] == 12 * 1437
    assert second.of("result")[0]["test_accuracy"] > 0.9


@pytest.mark.slow
def test_another_algorithm_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Downpour, then synchronous SGD with a backup worker; all pairs are tested on the local transport."""
    first = finished("switch-from", spec(algorithm="downpour", epochs=2), tmp_path / "first")
    checkpoint = first.of("checkpoint")[-1]
    backup = {"name": "sync", "form": "parameter_server", "backup": 1}
    fields = {"workers": 3, "epochs": 4, "checkpoint": {"resume": checkpoint["path"]}}
    second = finished("switch-to", spec(algorithm=backup, **fields), tmp_path / "second")
    assert second.events[-1].data["state"] == "SUCCEEDED", second.events[-1]
    assert [epoch["epoch"] for epoch in second.of("epoch")] == [3, 4]
    assert second.of("result")[0]["examples"] == 4 * 203
    assert second.of("evaluation")[-1]["test_loss"] < first.of("evaluation")[0]["test_loss"]


@pytest.mark.long
def test_evaluation_by_the_clock_does_not_change_the_result(tmp_path: Path) -> None:
    fields = {"epochs": 25, "data": "digits", "batch": 8, "workers": {"count": 2, "virtual": 3}}
    run = finished("often", spec(**fields, evaluate={"every_s": 0.1}), tmp_path)
    assert any(evaluation["examples"] % 1437 for evaluation in run.of("evaluation"))
    assert_same_bits(parameters(tmp_path), on_the_local_transport(spec(**fields)))


@pytest.mark.parametrize("transport", ["shared_memory", pytest.param("process_group", marks=pytest.mark.slow)])
@pytest.mark.long
def test_layer_by_layer_with_one_worker_has_the_bits_of_the_local_transport(tmp_path: Path, transport: str) -> None:
    algorithm = {"name": "downpour", "max_staleness": 0, "push": "layerwise", "bucket_bytes": 1}
    train = spec(workers=1, algorithm=algorithm, transport=transport)
    run = finished(f"layers-{transport}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    last = run.of("step")[-1]
    assert last["examples"] == 2 * 203
    assert last["group_staleness"] == [{"0": 2 * 29}] * 4  # weight and bias of two layers
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train))


@pytest.mark.parametrize("transport", ["shared_memory", pytest.param("process_group", marks=pytest.mark.slow)])
def test_asynchronous_back_propagation_with_one_worker_has_the_bits_of_the_local_transport(
    tmp_path: Path, transport: str
) -> None:
    algorithm = {"name": "downpour", "max_staleness": 2, "push": "layerwise", "server_rule": "staleness_aware"}
    algorithm["backprop"] = {"groups": 3, "delay": 1}
    train = spec(workers=1, algorithm=algorithm, model="lenet5", transport=transport)
    run = finished(f"delayed-{transport}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    last = run.of("step")[-1]
    assert last["examples"] == 2 * 203
    assert last["backprop_delays"] == [2, 1, 0]
    assert [counts[str(d)] for d, counts in zip((2, 1, 0), last["group_staleness"], strict=True)] == [56, 57, 58]
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train))
