"""Axes: which configurations they come to, and what is refused with which path."""

from pathlib import Path
from typing import Any

import pytest

from service import SpecInvalid, SweepSpec, configurations, parse_sweep
from service.sweeps.axes import base_batch

JOB = {"data": "digits", "workers": 1, "batch": {"per_worker": 8, "base": 8}, "warmup": {"epochs": 1}}


def spec(axes: dict[str, Any], **fields: Any) -> SweepSpec:
    return parse_sweep({"job": JOB, "axes": axes} | fields)


def refused(axes: dict[str, Any], **fields: Any) -> dict[str, str]:
    """Pointer -> message."""
    with pytest.raises(SpecInvalid) as caught:
        configurations(spec(axes, **fields))
    return {error.pointer: error.message for error in caught.value.errors}


def test_a_batch_is_virtual_workers_of_n_examples() -> None:
    found = configurations(spec({"batch": [8, 24]}))
    assert [(c.job.workers.virtual, c.job.batch.per_worker, c.job.update_batch) for c in found] == [
        (1, 8, 8),
        (3, 8, 24),
    ]


def test_an_asynchronous_worker_has_its_whole_batch_at_once() -> None:
    found = configurations(spec({"batch": [8, 12]}, job=JOB | {"algorithm": "downpour"}))
    assert [c.job.batch.per_worker for c in found] == [8, 12]


def test_the_batch_of_a_group_is_that_of_its_workers_together() -> None:
    workers = {"workers": {"count": 4}, "algorithm": {"name": "mixed", "group": 2}}
    found = configurations(spec({"batch": [8, 12]}, job=JOB | workers))
    assert [(c.job.batch.per_worker, c.job.update_batch) for c in found] == [(4, 8), (6, 12)]
    assert "minibatches of 2 workers" in refused({"batch": [9]}, job=JOB | workers)["/axes/batch/0"]


def test_workers_that_make_steps_alone_have_their_whole_batch_at_once() -> None:
    found = configurations(spec({"batch": [8, 12]}, job=JOB | {"workers": 2, "algorithm": "parallel_sgd"}))
    assert [(c.job.workers.num_virtual, c.job.update_batch) for c in found] == [(2, 8), (2, 12)]


def test_what_comes_to_the_same_run_is_run_once_and_the_baseline_first() -> None:
    axes = {"batch": [32, 16, 8], "rule": ["none", "sqrt", "linear"], "warmup": ["none", "gradual"], "seed": [0, 1]}
    found = configurations(spec(axes))
    # At the base batch all rules are one; `none` has no higher rate to warm up to.
    assert len(found) == 2 + 2 * (1 + 2 + 2) * 2
    assert [c.job.update_batch for c in found[:3]] == [8, 8, 32]
    assert {c.job.scaling.name for c in found[:2]} == {"none"}
    assert len({c.key for c in found}) == len(found)


def test_every_value_of_an_axis_reaches_its_field() -> None:
    axes = {"multiple": [0.5, 2], "optimizer.momentum": [0.8], "warmup": [{"name": "gradual", "epochs": 2}]}
    axes |= {"rule": ["linear"], "batch": [16], "algorithm": ["sync"]}
    first, second = (c.job for c in configurations(spec(axes)))
    assert (first.optimizer.lr, second.optimizer.lr) == (0.01, 0.04)
    assert first.optimizer.model_dump()["momentum"] == 0.8
    assert (first.warmup.name, first.warmup.epochs, first.scaling.name) == ("gradual", 2, "linear")


def test_a_random_search_draws_the_same_configurations_for_the_same_seed() -> None:
    def drawn(seed: int) -> list[str]:
        search = {"name": "random", "seed": seed}
        return [c.key for c in configurations(spec({"seed": [*range(100)]}, search=search, limits={"trials": 7}))]

    assert drawn(1) == drawn(1) != drawn(2)
    assert len(set(drawn(1))) == 7


def test_what_is_wrong_with_an_axis_is_told_by_its_path() -> None:
    assert refused({"optimizer.lrr": [1]}) == {"/axes/optimizer.lrr": "there is no such field; did you mean lr?"}
    assert refused({"zzz": [1, 2]}) == {"/axes/zzz": "there is no such field"}
    assert "/axes/seed" in refused({"seed": []})
    assert "8 examples" in refused({"batch": [8, 12]})["/axes/batch/1"]
    assert "/axes/rule/0" in refused({"rule": ["cubic"]})
    assert "/axes/multiple/0" in refused({"multiple": [-1]})
    assert set(refused({"seed": [-1], "epochs": ["many"]})) == {"/axes/seed/0", "/axes/epochs/0"}
    assert "/job/batch/base" in refused({"rule": ["linear"]}, job={"batch": 8})


def test_a_batch_must_divide_into_workers_times_n() -> None:
    job = JOB | {"workers": 2}
    assert [c.job.workers.virtual for c in configurations(spec({"batch": [16, 32]}, job=job))] == [2, 4]
    assert "2 workers x 8 examples" in refused({"batch": [24]}, job=job)["/axes/batch/0"]


@pytest.mark.parametrize(
    ("data", "algorithm", "largest"),
    [
        ("digits", "sync", 1432),
        ({"name": "digits", "limit": 200}, "sync", 200),
        ({"name": "tests.data.usersets:four_arrays", "limit": 200}, "sync", 200),
        ({"name": "digits", "limit": 200}, "downpour", 200),
    ],
)
def test_a_batch_is_not_scaled_beyond_the_data_set(data: Any, algorithm: str, largest: int) -> None:
    """An update would have the whole set at most, at the learning rate of more."""
    job = JOB | {"data": data, "algorithm": algorithm, "scaling": "linear"}
    assert len(configurations(spec({"batch": [8, largest]}, job=job))) == 2
    told = refused({"batch": [8, largest, largest + 8]}, job=job)["/axes/batch"]
    assert f"an update would have {largest + 8} examples" in told


@pytest.mark.parametrize("count", [21, 100_000])
def test_a_grid_over_the_limit_is_refused_with_its_count(count: int) -> None:
    told = refused({"seed": [*range(count)]}, limits={"trials": 20})
    assert f"{count} configurations" in told["/axes"]
    assert "20" in told["/axes"]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"search": "annealing"}, "/search"),
        ({"search": {"name": "asha", "speed": 1}}, "/search/speed"),
        ({"limits": {"trials": 0}}, "/limits/trials"),
        ({"job": {"algorithm": {"name": "downpour", "speed": 1}}}, "/job/algorithm/speed"),
        ({"stop": {"diverges_from_baseline": {"grace": 2}}}, "/stop/diverges_from_baseline"),
        ({"axes": {}}, "/axes"),
        ({"job": JOB, "report": {"base_batch": 16}}, "/report"),
    ],
)
def test_what_is_wrong_with_a_field_is_told_by_its_path(fields: dict[str, Any], pointer: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        parse_sweep({"axes": {"seed": [0]}} | fields)
    assert any(error.pointer.startswith(pointer) for error in caught.value.errors), caught.value.errors


def test_bohb_is_refused_with_what_to_install_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.sweeps.spec.find_spec", lambda name: None)
    with pytest.raises(SpecInvalid) as caught:
        spec({"seed": [0]}, search="bohb")
    assert "pip install 'millrace[bohb]'" in caught.value.errors[0].message


def test_a_path_on_an_axis_is_taken_from_where_the_rest_is(tmp_path: Path) -> None:
    axes = {
        "data.root": ["here", "/there"],
        "model.weights": [None, "w.safetensors"],
        "data": [{"name": "mnist", "root": "x"}],
        "seed": [1],
    }
    found = spec(axes).resolved(tmp_path).axes
    assert found["data.root"] == (str(tmp_path / "here"), "/there")
    assert found["model.weights"] == (None, str(tmp_path / "w.safetensors"))
    assert found["data"] == ({"name": "mnist", "root": str(tmp_path / "x")},)
    assert found["seed"] == (1,)


def test_an_extension_keeps_what_was_there() -> None:
    first = spec({"batch": [8], "seed": [0, 1]})
    second = first.extended({"seed": [1, 2], "epochs": [5, 6]}, {"trials": 30})
    assert second.axes == {"batch": (8,), "seed": (0, 1, 2), "epochs": (5, 6)}
    assert second.limits.trials == 30
    keys = {c.key for c in configurations(second)}
    assert {c.key for c in configurations(first)} <= keys  # epochs 5 is the default
    assert len(keys) == 6
    with pytest.raises(SpecInvalid):
        first.extended({"seed": 3})


def test_the_baseline_is_the_base_batch_or_else_the_smallest() -> None:
    assert base_batch(spec({"batch": [16, 32]})) == 8
    assert base_batch(spec({"batch": [32, 16]}, job=JOB | {"batch": 8})) == 16
    free = JOB | {"batch": 8}
    assert base_batch(spec({"batch": [8, 16]}, job=free, report={"base_batch": 16})) == 16


def test_a_variant_is_several_fields_under_one_name(tmp_path: Path) -> None:
    variants = {"small": {"optimizer.lr": 0.1}, "large": {"batch": 64, "rule": "linear", "code": "mine.py"}}
    found = configurations(spec({"seed": [0, 1]}, variants=variants))
    assert [(c.settings["variant"], c.job.optimizer.lr, c.job.update_batch, c.job.seed) for c in found] == [
        ("small", 0.1, 8, 0), ("small", 0.1, 8, 1), ("large", 0.02, 64, 0), ("large", 0.02, 64, 1),
    ]  # fmt: skip
    assert found[2].job.scaling.name == "linear"
    assert spec({"variant": ["large"]}, variants=variants).resolved(tmp_path).variants["large"]["code"] == str(
        tmp_path / "mine.py"
    )
    assert len(configurations(spec({"variant": ["small"], "seed": [1]}, variants=variants))) == 1


def test_a_wrong_variant_is_told_by_its_field() -> None:
    variants = {"a": {"optimizer.lx": 1, "batch": 12}, "b": {"seed": 1}}
    told = refused({"variant": ["b", "c"]}, variants=variants)
    assert "there is no such field" in told["/variants/a/optimizer.lx"]
    assert "8 examples" in told["/variants/a/batch"]
    assert told["/axes/variant/1"] == "there is no variant 'c', only a, b"


LR = {"low": 1e-4, "high": 0.1, "log": True}
ADAMW = {"optimizer": {"name": "adamw", "lr": 0.003}}


@pytest.mark.parametrize("search", ["grid", "random", "asha"])
@pytest.mark.parametrize("axes", [("optimizer.lr", "optimizer"), ("optimizer", "optimizer.lr")])
def test_a_section_is_applied_before_its_fields_in_whatever_order_its_axes_stand(
    axes: tuple[str, ...], search: str
) -> None:
    values = {"optimizer.lr": [0.003, 1e-5], "optimizer": ["adamw", "sgd"]}
    first = spec({axis: values[axis] for axis in axes}, job=JOB | ADAMW, search=search)
    found = configurations(first)
    assert len(found) == 4
    for one in found:
        assert one.settings == {"optimizer.lr": one.job.optimizer.lr, "optimizer": one.job.optimizer.name}
        assert tuple(one.settings) == axes  # as they stand, for labels and tables
    keys = {one.key for one in configurations(first.extended({"optimizer": ["lion"]}))}
    assert len(keys) == 6
    assert {one.key for one in found} < keys


@pytest.mark.parametrize("axes", [("optimizer.lr", "optimizer.name"), ("optimizer.name", "optimizer.lr")])
def test_an_axis_may_be_the_name_of_a_section(axes: tuple[str, ...]) -> None:
    values = {"optimizer.lr": [0.003, 1e-5], "optimizer.name": ["adamw", "sgd"]}
    first = spec({axis: values[axis] for axis in axes}, job=JOB | ADAMW)
    found = configurations(first)
    assert sorted((c.job.optimizer.name, c.job.optimizer.lr) for c in found) == [
        ("adamw", 1e-5), ("adamw", 0.003), ("sgd", 1e-5), ("sgd", 0.003),
    ]  # fmt: skip
    stored = SweepSpec.model_validate(first.model_dump(mode="json"))  # has every field, as if all were written
    assert [c.key for c in configurations(stored)] == [c.key for c in found]


@pytest.mark.parametrize(
    ("optimizer", "rates"),
    [
        ("adamw", {"adamw": 0.001, "sgd": 0.1}),
        ({"name": "adamw", "lr": 0.003}, {"adamw": 0.003, "sgd": 0.003}),
        ({"name": "momentum", "momentum": 0.5}, {"momentum": 0.02, "nesterov": 0.05}),
    ],
)
def test_a_section_of_another_name_keeps_what_is_no_default(optimizer: Any, rates: dict[str, float]) -> None:
    found = [c.job.optimizer for c in configurations(spec({"optimizer.name": [*rates]}, job={"optimizer": optimizer}))]
    assert {one.name: one.lr for one in found} == rates
    assert {getattr(one, "momentum", 0.5) for one in found} == {0.5}


def test_a_field_that_the_section_of_another_name_lacks_is_refused() -> None:
    job = JOB | {"optimizer": {"name": "adamw", "betas": [0.5, 0.9]}}
    told = refused({"optimizer.name": ["adamw", "sgd"]}, job=job)["/axes"]
    assert told.startswith("optimizer.name sgd: /optimizer/betas: sgd has no such field")


def test_a_range_of_a_field_may_stand_before_its_section() -> None:
    axes = {"optimizer.lr": LR, "optimizer": ["adamw", "sgd"]}
    for one in configurations(spec(axes, search="random", limits={"trials": 8})):
        assert (one.job.optimizer.lr, one.job.optimizer.name) == tuple(one.settings.values())


def test_what_is_computed_from_fields_goes_by_those_that_other_axes_set() -> None:
    axes = {"multiple": [1, 2], "batch": [32], "rule": ["sqrt"], "optimizer": ["adamw", {"name": "sgd", "lr": 0.5}]}
    axes |= {"workers": [{"count": 1, "virtual": 1}], "scaling.weight_decay": ["sqrt"]}
    found = [one.job for one in configurations(spec(axes, job=JOB | {"scaling": "sqrt"}))]
    assert [one.optimizer.lr for one in found] == [0.001, 0.5, 0.002, 1.0]
    assert {(one.update_batch, one.scaling.weight_decay) for one in found} == {(32, "sqrt")}


def test_a_range_is_drawn_from_the_same_for_the_same_seed() -> None:
    axes = {
        "optimizer.lr": LR,
        "batch.per_worker": {"low": 8, "high": 40, "integer": True, "step": 8},
        "epochs": [3, 4],
    }

    def drawn(name: str, seed: int, trials: int) -> list[dict[str, Any]]:
        search = {"name": name, "seed": seed}
        return [c.settings for c in configurations(spec(axes, search=search, limits={"trials": trials}))]

    assert drawn("random", 1, 60) == drawn("asha", 1, 60) != drawn("random", 2, 60)
    assert all(one in drawn("random", 1, 60) for one in drawn("random", 1, 20))  # a higher limit adds trials
    assert {one["batch.per_worker"] for one in drawn("random", 1, 60)} == {8, 16, 24, 32, 40}
    rates = sorted(one["optimizer.lr"] for one in drawn("random", 1, 60))
    assert 1e-4 <= rates[0] <= rates[-1] <= 0.1
    assert 1e-3 < rates[30] < 1e-2  # uniform in the logarithm
    first = configurations(spec(axes, search="random", limits={"trials": 1}))[0]
    assert first.job.optimizer.lr == first.settings["optimizer.lr"]


@pytest.mark.parametrize("search", ["grid", "random"])
def test_an_axis_may_stand_beside_values_of_another_only(search: str) -> None:
    momentum = {"values": [0.5, 0.9], "when": {"optimizer": "momentum"}}
    axes = {"optimizer": ["sgd", "momentum"], "optimizer.momentum": momentum, "seed": [0, 1]}
    found = configurations(spec(axes, search=search))
    assert sorted(str(c.settings.get("optimizer.momentum")) for c in found) == ["0.5"] * 2 + ["0.9"] * 2 + ["None"] * 2
    assert {c.job.optimizer.name for c in found if "optimizer.momentum" not in c.settings} == {"sgd"}


@pytest.mark.parametrize(
    ("axes", "search", "pointer", "told"),
    [
        ({"optimizer.lr": LR}, "grid", "/axes/optimizer.lr", "a grid has no ranges"),
        ({"optimizer.lr": LR, "batch": [8, 16]}, "random", "/axes/optimizer.lr", "the scaling report compares seeds"),
        ({"batch": LR}, "random", "/axes/batch", "has no range"),
        ({"optimizer.lr": {"low": -1, "high": 1}}, "random", "/axes/optimizer.lr/low", "greater than 0"),
        ({"optimizer.lr": {"low": 2, "high": 1}}, "random", "/axes/optimizer.lr", "ends above where it begins"),
        ({"optimizer.lr": {"low": 1, "high": 2, "lg": True}}, "random", "/axes/optimizer.lr/lg", "no such field"),
        ({"epochs": {"low": 1, "high": 2.5, "integer": True}}, "random", "/axes/epochs", "whole numbers"),
        ({"epochs": {"low": 1, "high": 6, "integer": True, "step": 2}}, "asha", "/axes/epochs", "2.5 steps"),
        ({"epochs": {"low": 0, "high": 6, "log": True}}, "asha", "/axes/epochs", "above 0"),
        ({"epochs": {"values": [1], "when": {"seed": 1}}}, "grid", "/axes/epochs/when/seed", "stands before"),
        ({"name": ["a"], "epochs": {"values": [1], "when": {"name": "b"}}}, "grid", "/axes/epochs/when/name", "never"),
        (
            {"seed": [1], "epochs": {"values": [], "when": {"seed": 1}}},
            "grid",
            "/axes/epochs/when/seed",
            "stands before",
        ),
    ],
)
def test_a_wrong_range_or_condition_is_told_by_its_path(
    axes: dict[str, Any], search: str, pointer: str, told: str
) -> None:
    with pytest.raises(SpecInvalid) as caught:
        configurations(spec(axes, search=search))
    assert told in {error.pointer: error.message for error in caught.value.errors}[pointer]


def test_a_range_is_not_extended() -> None:
    with pytest.raises(SpecInvalid, match=r"raise limits\.trials"):
        spec({"optimizer.lr": LR}, search="random").extended({"optimizer.lr": [0.5]})
    assert spec({"optimizer.lr": LR}, search="random").extended({}, {"trials": 9}).limits.trials == 9
