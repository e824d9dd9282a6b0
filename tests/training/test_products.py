"""Which library multiplies: decided once for a run, kept in its checkpoints."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trainers.collectives.endpoints import SharedMemoryEndpoint
from trainers.models.products import measure
from trainers.models.products.choice import Choice
from trainers.models.products.table import processor_name
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from trainers.training.loop import ModelVersion, Ports, TrainingLoop
from trainers.training.messages import GenerationStart
from trainers.training.position import Position
from trainers.training.products import tune_products, with_products
from trainers.training.setup import Setup, check, set_up
from trainers.training.step_gate import StepGate

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


def trained(setup: Setup, choice: Choice, folder: Path) -> ModelVersion:
    """The end of a run of one worker whose products are made so."""
    folder.mkdir()
    gate = StepGate()
    gate.release(1000)
    ports = Ports(lambda report: None, lambda dropped: None, lambda version: None, lambda clock: None)
    begin = GenerationStart(0, SharedMemoryEndpoint(0, 0, 1), products=choice)
    loop = TrainingLoop(setup, folder, begin, gate, ports, None)
    assert loop.train().has_version
    assert loop.version is not None
    return loop.version


def turned(table: Path) -> None:
    """Have the table name the other library for each product."""
    known = json.loads(table.read_text())
    for row in known[processor_name()].values():
        row["onednn"] = not row["onednn"]
    table.write_text(json.dumps(known))


def test_the_bits_of_a_resume_do_not_change_with_the_table(tmp_path: Path) -> None:
    table, data = tmp_path / "products.json", {"name": "digits", "limit": 64}
    model = {"name": "mlp", "kwargs": {"hidden": 2048}}  # long sums, which the two libraries add in other orders
    fields: dict[str, Any] = {"model": model, "data": data, "workers": 1, "epochs": 2}
    whole = prepared(**fields)
    choice = with_products(whole, whole.run_layout(), table).products
    expected = trained(whole, choice, tmp_path / "whole").whole.params
    half = prepared(**fields | {"epochs": 1})
    first = trained(half, choice, tmp_path / "half")
    buffers = {"params": first.whole.params, **first.whole.state}
    kept = Checkpoint(
        first.position,
        half.spec.model_dump(mode="json"),
        half.layout.named(buffers.pop("params")),
        {name: half.layout.named(vector) for name, vector in buffers.items()},
        products=choice,
    )
    write_checkpoint(tmp_path / "c", kept)
    turned(table)
    resumed = prepared(**fields, checkpoint={"resume": str(tmp_path / "c")})
    again = with_products(resumed, resumed.run_layout(), table).products
    assert torch.equal(trained(resumed, again, tmp_path / "resumed").whole.params, expected)
    untried = prepared(**fields)
    other = with_products(untried, untried.run_layout(), table).products
    assert set(other.onednn) == set(choice.measured) - set(choice.onednn)
    assert not torch.equal(trained(untried, other, tmp_path / "other").whole.params, expected)


def test_a_run_whose_layers_were_tuned_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, setup = tmp_path / "products.json", prepared()
    tuned = tune_products(setup.spec, table)
    assert (tuned.processor, tuned.table) == (processor_name(), str(table))
    assert {row.product for row in tuned.products} >= {f"{name}, 16 rows" for name in NAMES}
    monkeypatch.setattr(measure, "measure_layer", lambda *layer: pytest.fail("it was measured again"))
    chosen = with_products(setup, setup.run_layout(), table).products
    assert set(chosen.onednn) == {row.product.removesuffix(", 16 rows") for row in tuned.products if row.onednn}
    with pytest.raises(pytest.fail.Exception):
        tune_products(setup.spec, table, again=True)


def test_a_job_whose_products_torch_makes_is_not_measured(tmp_path: Path) -> None:
    for fields in ({"model": "mlp"}, {"precision": "bfloat16"}):
        assert tune_products(prepared(**fields).spec, tmp_path / "products.json").products == ()
