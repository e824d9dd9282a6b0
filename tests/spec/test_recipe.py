"""`explain`: paper 4's recipe, number by number, and that a run follows the recipe shown."""

import subprocess
import sys

import pytest

from trainers.data.datasets import open_dataset
from trainers.data.names import DATASETS, NUM_TRAIN, RECORDS, SAVED
from trainers.spec import DataSpec, TrainSpec
from trainers.spec.recipe import Recipe, explain, known_examples

PAPER_4 = {
    "workers": {"count": 1, "virtual": 256},
    "batch": {"per_worker": 32, "base": 256},
    "data": "imagenet",
    "model": {"name": "resnet50", "init": "he", "zero_gamma": True},
    "optimizer": {"name": "nesterov", "lr": 0.1, "weight_decay": 0.0001},
    "scaling": "linear",
    "warmup": "gradual",
    "schedule": "step",
    "epochs": 90,
}


def values(recipe: Recipe) -> dict[str, object]:
    return {name: quantity.value for name, quantity in recipe.quantities.items()}


def test_paper_4s_imagenet_in_an_hour() -> None:
    spec = TrainSpec.model_validate(PAPER_4)
    examples = known_examples(spec.data)
    assert examples == 1_281_167
    recipe = explain(spec, examples)
    found = values(recipe)
    assert (found["workers"], found["per_worker"], found["batch"], found["base"]) == (256, 32, 8192, 256)
    assert (found["factor"], found["rate_factor"], found["momentum"], found["weight_decay"]) == (32, 32, 0.9, 0.0001)
    assert found["learning_rate"] == pytest.approx(3.2)
    assert (found["steps_per_epoch"], found["epochs"], found["steps"]) == (157, 90, 157 * 90)
    assert found["no_decay"] == "batch norm"
    assert (found["warmup"], found["schedule"], found["init"], found["zero_gamma"]) == ("gradual", "step", "he", "true")
    phases = {phase.name: (round(phase.epoch), phase.learning_rate) for phase in recipe.phases}
    assert {name: epoch for name, (epoch, _) in phases.items()} == {
        "start": 0, "end of warm-up": 5, "drop 1": 30, "drop 2": 60, "drop 3": 80, "last update": 90,
    }  # fmt: skip
    assert [rate for _, rate in phases.values()] == pytest.approx([0.1, 3.2, 0.32, 0.032, 0.0032, 0.0032])
    assert recipe.quantities["rate_factor"].source == "paper 4, section 2.1"


def test_paper_1s_square_root() -> None:
    spec = TrainSpec.model_validate({
        "workers": {"count": 8},
        "batch": {"per_worker": 128, "base": 128},
        "optimizer": {"lr": 0.01, "weight_decay": 0.0005, "equation": 10, "momentum_correction": False},
        "scaling": {"name": "sqrt", "weight_decay": "exact"},
        "schedule": "krizhevsky",
        "epochs": 90,
    })  # fmt: skip
    recipe = explain(spec, 1_281_167)
    assert round(float(values(recipe)["weight_decay"]), 10) == 0.0014141888  # type: ignore[arg-type]
    assert values(recipe)["learning_rate"] == pytest.approx(8**0.5 * 0.01)
    assert [round(phase.epoch, 1) for phase in recipe.phases] == [0, 22.5, 45, 67.5, 90]
    assert recipe.phases[3].learning_rate == pytest.approx(8**0.5 * 0.01 / 250)
    assert recipe.phases[3].formula == "learning_rate x (250^(-1/3))^3"


@pytest.mark.parametrize("schedule", ["constant", "step", "krizhevsky", "cosine", "polynomial"])
@pytest.mark.parametrize("warmup", ["none", "constant", "gradual"])
@pytest.mark.parametrize("algorithm", ["sync", "downpour"])
def test_the_rates_are_those_of_the_schedule(schedule: str, warmup: str, algorithm: str) -> None:
    fields = {"schedule": schedule, "warmup": warmup, "algorithm": algorithm, "batch": {"per_worker": 64, "base": 16}}
    spec = TrainSpec.model_validate(PAPER_4 | fields)
    recipe, rate = explain(spec, 10_000), spec.learning_rate(10_000)
    assert all(phase.learning_rate == rate(phase.examples) for phase in recipe.phases)
    assert [phase.examples for phase in recipe.phases] == sorted(phase.examples for phase in recipe.phases)
    assert recipe.phases[-1].examples < 90 * 10_000
    assert values(recipe)["batch"] == (64 if algorithm == "downpour" else 256 * 64)


@pytest.mark.parametrize(
    ("algorithm", "which"),
    [("sync", "of an update"), ("mixed", "each push"), ("parallel_sgd", "each worker's own step")],
)
def test_what_is_clipped(algorithm: str, which: str) -> None:
    found = [
        explain(TrainSpec.model_validate({"algorithm": algorithm, "clip": clip}), 1437).quantities["clip"]
        for clip in ({"norm": 0.5}, {"value": 0.1}, None)
    ]
    assert [quantity.value for quantity in found] == [0.5, 0.1, "none"]
    assert found[0].source == "Pascanu et al. 2013"
    assert all(which in quantity.formula for quantity in found[:2])


def test_restricted_layers() -> None:
    def told(blocks: int, count: int, **rank: int) -> Recipe:
        connect = {"name": "hybrid", "connect": {"blocks": blocks} | rank}
        return explain(TrainSpec.model_validate({"algorithm": connect, "workers": count}), 1437)

    assert values(told(4, 2))["connect"] == "4 blocks"
    assert "1/4 of the weights" in told(4, 2).quantities["connect"].formula
    assert not any("connect" in warning for warning in told(4, 2).warnings + told(2, 4).warnings)
    assert any("some have more of them" in warning for warning in told(4, 3).warnings)
    assert any("more of them share some" in warning for warning in told(2, 3).warnings)
    assert values(told(4, 2, rank=8))["connect"] == "4 blocks, rank 8"
    assert "32 numbers an example" in told(4, 2, rank=8).quantities["connect"].formula


def test_columns() -> None:
    def told(columns: int, count: int) -> Recipe:
        algorithm, workers = {"name": "hybrid", "columns": columns}, {"count": count, "virtual": columns}
        return explain(TrainSpec.model_validate({"algorithm": algorithm, "workers": workers}), 1437)

    assert values(told(2, 2))["columns"] == 2
    assert "no gradient of a parameter does" in told(2, 2).quantities["columns"].formula
    assert not any("columns" in warning for warning in told(4, 2).warnings)
    assert any("share 4 columns, so some have one more" in warning for warning in told(4, 3).warnings)


def test_rows_of_images() -> None:
    for until, told in (({}, "up to the first layer that needs whole examples"), ({"until": "norm1"}, "up to norm1")):
        spec = TrainSpec.model_validate({"algorithm": {"name": "spatial", **until}, "workers": 3})
        found = explain(spec, 1437).quantities["rows"]
        assert (found.value, found.source) == ("in 3 parts", "paper 1 (7), Coates et al. 2013")
        assert told in found.formula
    assert "rows" not in explain(TrainSpec(), 1437).quantities


def test_all_numbers_of_an_optimizers_formula_are_told() -> None:
    muon = values(explain(TrainSpec.model_validate({"optimizer": "muon"}), 1437))
    told = {"optimizer": "muon", "momentum": 0.95, "nesterov": "true", "newton_schulz": 5, "betas": "0.9, 0.95"}
    assert {name: muon[name] for name in told} == told
    named = explain(TrainSpec.model_validate({"optimizer": "torch.optim:NAdam"}), 1437)
    assert values(named)["optimizer"] == "torch.optim:NAdam"
    with pytest.raises(ValueError, match=r"torch.optim:NAdam updates whole parameters"):
        TrainSpec.model_validate({"optimizer": "torch.optim:NAdam", "algorithm": "hybrid"})


def test_how_a_run_is_judged_and_its_labels_smoothed() -> None:
    fields = {"early_stop": {"patience": 4, "min_delta": 0.01}, "checkpoint": {"keep_best": "loss"}}
    smoothed = {"task": {"name": "classification", "kwargs": {"label_smoothing": 0.1}}}
    found = explain(TrainSpec.model_validate(fields | smoothed), 1437).quantities
    assert found["keep_best"].value == "loss (less is better)"
    assert (found["early_stop"].value, found["early_stop"].source) == (4, "Prechelt 1998")
    assert "accuracy (more is better) is not better by more than 0.01" in found["early_stop"].formula
    assert (found["label_smoothing"].value, found["label_smoothing"].source) == (0.1, "Szegedy et al. 2016")
    own = {"task": "mine:Task", "model": "task", "checkpoint": {"keep_best": {}}}
    assert explain(TrainSpec.model_validate(own), 1437).quantities["keep_best"].value == "the headline of the task"


def test_the_average_and_its_memory() -> None:
    found = explain(TrainSpec.model_validate({"optimizer": "momentum", "ema": {"decay": 0.9}}), 1437).quantities
    assert (found["ema"].value, found["ema"].source) == (0.9, "Polyak and Juditsky 1992")
    assert found["optimizer_state"].value == 4 * 2 * 2
    assert found["worker_memory"].value == 4 * (2 * (1 + 2) + 1)


@pytest.mark.parametrize(
    ("fields", "value"),
    [({"optimizer": "sgd"}, 12), ({"optimizer": "momentum"}, 20), ({"optimizer": "torch.optim:NAdam"}, None),
     ({"optimizer": "momentum", "algorithm": "downpour"}, 8), ({"algorithm": "hybrid"}, 20),
     ({"algorithm": {"name": "hybrid", "columns": 2}}, 20),
     ({"algorithm": {"name": "hybrid", "columns": 2}, "transport": "process_group"}, 12)],
)  # fmt: skip
def test_the_memory_of_a_worker_counts_what_it_holds_itself(fields: dict[str, object], value: int | None) -> None:
    assert explain(TrainSpec.model_validate(fields), 1437).quantities["worker_memory"].value == value


def test_a_limit_cuts_the_examples_and_no_base_scales_nothing() -> None:
    recipe = explain(TrainSpec.model_validate({"data": {"limit": 100}, "scaling": "linear"}), 1437)
    assert (values(recipe)["examples"], values(recipe)["base"], values(recipe)["factor"]) == (100, None, 1)
    assert "nothing is scaled" in recipe.quantities["factor"].formula
    idle = TrainSpec.model_validate({"warmup": {"name": "gradual", "epochs": 1}})
    assert explain(idle, 1437).quantities["warmup"].formula.startswith("does nothing")


def test_the_known_sizes() -> None:
    assert known_examples(DataSpec(name="mnist", validation=0.1)) == 54_000
    with open_dataset(DataSpec(name="digits"), 0) as data:
        assert data.num_train == NUM_TRAIN["digits"]
    assert set(NUM_TRAIN) == set(DATASETS) - {"image_folder", *RECORDS, *SAVED}
    assert known_examples(DataSpec(name="my.sets:letters")) is None


def test_it_needs_neither_torch_nor_ray() -> None:
    program = "import sys; from trainers import TrainSpec, explain; explain(TrainSpec(), 5); "
    program += "sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
