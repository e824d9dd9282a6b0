"""Which library multiplies: decided once for a run, kept in its checkpoints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainers.models.products.choice import Choice
from trainers.models.products.measure import processor_name
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from trainers.training.position import Position
from trainers.training.products import with_products
from trainers.training.setup import Setup, check, set_up

NAMES = ("input gradient 64x1024", "outputs 64x1024", "weight gradient 64x1024")


def prepared(**fields: Any) -> Setup:
    model = {"name": "mlp", "kwargs": {"hidden": 1024}}
    setup = set_up(TrainSpec.model_validate({"model": model, "batch": 16, "epochs": 3} | fields), None)
    check(setup)
    return setup


def test_the_large_layers_of_a_run_are_measured(tmp_path: Path) -> None:
    setup = prepared()
    assert {rows for rows, *_ in setup.replica.products.seen} == {2}
    layout = with_products(setup, setup.run_layout(), tmp_path / "products.json")
    assert layout.products.processor == processor_name()
    assert set(NAMES) <= set(layout.products.measured)
    assert layout.other_processor == ""
    assert "64x1024" in (tmp_path / "products.json").read_text()


@pytest.mark.parametrize("is_same", [True, False])
def test_a_resume_multiplies_as_the_checkpoint_says_on_such_a_processor(tmp_path: Path, is_same: bool) -> None:
    setup = prepared()
    measured = with_products(setup, setup.run_layout(), tmp_path / "products.json").products
    opposite = tuple(name for name in measured.measured if name not in measured.onednn)
    theirs = replace(measured, onednn=opposite, processor=processor_name() if is_same else "another")
    start, _ = setup.begin()
    model = setup.layout.named(start.buffers.params)
    state = {name: setup.layout.named(vector) for name, vector in start.buffers.state.items()}
    spec = setup.spec.model_dump(mode="json")
    write_checkpoint(tmp_path / "c", Checkpoint(Position(epoch=1), spec, model, state, products=theirs))
    assert read_checkpoint(tmp_path / "c").products == theirs
    resumed = prepared(checkpoint={"resume": str(tmp_path / "c")})
    layout = with_products(resumed, resumed.run_layout(), tmp_path / "products.json")
    assert layout.products == (theirs if is_same else measured)
    assert layout.other_processor == ("" if is_same else "another")


def test_a_checkpoint_from_before_there_was_a_choice_says_nothing(tmp_path: Path) -> None:
    setup = prepared()
    start, _ = setup.begin()
    model = setup.layout.named(start.buffers.params)
    write_checkpoint(tmp_path / "c", Checkpoint(Position(), setup.spec.model_dump(mode="json"), model))
    about = tmp_path / "c" / "position.json"
    about.write_text(about.read_text().replace('"products"', '"before"'))
    assert read_checkpoint(tmp_path / "c").products == Choice()
