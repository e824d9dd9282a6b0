"""What a checkpoint allows a run to go on with."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trainers.data.order import Order
from trainers.elastic.lease_table import Lease
from trainers.errors import SpecRejected
from trainers.runtime.control.run_progress import already_applied
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from trainers.training.messages import RunLayout
from trainers.training.position import Position
from trainers.training.setup import set_up


def spec(**fields: object) -> TrainSpec:
    base: dict[str, object] = {"data": {"name": "digits", "limit": 100}, "model": "mlp", "epochs": 5, "workers": 2}
    return TrainSpec.model_validate(base | fields)


def write(folder: Path, position: Position) -> str:
    """A checkpoint of `spec()` at a position."""
    setup = set_up(spec(), None)
    start, _ = setup.begin()
    model = setup.layout.named(start.buffers.params)
    optimizer = {name: setup.layout.named(vector) for name, vector in start.buffers.state.items()}
    write_checkpoint(folder / "c", Checkpoint(position, spec().model_dump(mode="json"), model, optimizer))
    return str(folder / "c")


def begin(resume: str, **fields: object) -> Position:
    return set_up(spec(checkpoint={"resume": resume}, **fields), None).begin()[1]


def test_a_run_that_begins_anew_begins_as_it_did_at_first() -> None:
    """Also in a process that has trained, as where nobody holds a version and there is no checkpoint."""
    setup = set_up(spec(), None)
    first = setup.begin()[0].buffers.params.clone()
    trained = first + 1
    setup.replica.point_to_vector(trained)
    assert torch.equal(setup.begin()[0].buffers.params, first)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    position = Position(epoch=2, step=1, updates=9, examples=264, applied=(((2, 0, 0, 1),),))
    found = read_checkpoint(Path(write(tmp_path, position)))
    assert found.position == position
    assert set(found.model) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    assert set(found.optimizer) == {"momentum"}
    assert not list(tmp_path.glob(".*"))


def test_within_an_epoch_the_division_of_the_examples_must_stay(tmp_path: Path) -> None:
    resume = write(tmp_path, Position(epoch=2, step=1, examples=264))
    assert begin(resume).examples == 264
    assert begin(resume, workers={"count": 1, "virtual": 2}).step == 1
    for field, change in {
        "batch.per_worker": {"batch": 16},
        "data.limit": {"data": {"name": "digits", "limit": 90}},
        "workers.virtual": {"workers": 3},
        "seed": {"seed": 1},
        "algorithm": {"algorithm": "downpour"},
    }.items():
        with pytest.raises(SpecRejected, match=f"^{field}: .*end of an epoch"):
            begin(resume, **change)
    with pytest.raises(SpecRejected, match="begun with sync, a synchronous algorithm; keep that"):
        begin(resume, algorithm="downpour")


def test_between_epochs_it_may_change_and_the_examples_are_counted_anew(tmp_path: Path) -> None:
    resume = write(tmp_path, Position(epoch=2, examples=200))
    position = begin(resume, batch=16, data={"name": "digits", "limit": 90}, workers=3, algorithm="downpour")
    assert (position.epoch, position.examples) == (2, 180)


def test_nothing_left_to_train_and_another_model_are_refused(tmp_path: Path) -> None:
    resume = write(tmp_path, Position(epoch=5, examples=500))
    with pytest.raises(SpecRejected, match=r"^epochs: the checkpoint has 5 behind it"):
        begin(resume)
    with pytest.raises(SpecRejected, match="another model's"):
        begin(resume, model="lenet5", epochs=6)


def test_within_an_epoch_what_is_pushed_by_itself_must_stay(tmp_path: Path) -> None:
    """Shards remember pushes by groups of parameters, which another division would not know."""
    setup = set_up(spec(algorithm="downpour"), None)
    start, _ = setup.begin()
    model = setup.layout.named(start.buffers.params)
    position = Position(epoch=2, examples=264, applied=(((2, 0, 0, 1),), ((2, 0, 0, 1),)))
    written = spec(algorithm="downpour").model_dump(mode="json")
    write_checkpoint(tmp_path / "c", Checkpoint(position, written, model, {}))
    assert begin(str(tmp_path / "c"), algorithm="mixed").examples == 264
    with pytest.raises(SpecRejected, match=r"^algorithm.push: .*begun with whole"):
        begin(str(tmp_path / "c"), algorithm={"name": "downpour", "push": "layerwise"})


def test_a_minibatch_is_behind_a_resumed_run_when_every_group_on_every_shard_has_applied_it() -> None:
    applied = (((0, 0, 0, 3), (0, 1, 0, 2)), ((0, 1, 0, 2), (0, 2, 1, 3)))  # epoch, group, first, last
    position = Position(applied=applied)
    layout = RunLayout(
        num_examples=100, minibatches=4, steps=4, numel=256,
        shards=((0, 128), (128, 256)), device="cpu", position=position, groups=((0, 64), (64, 192), (192, 256)),
    )  # fmt: skip
    order = Order(100, 32, 1, 0)
    found = already_applied(layout, order, spec(algorithm="downpour"))
    assert found == [Lease(0, 1, 1), Lease(0, 2, 2)]
    nothing = replace(layout, position=replace(position, applied=(applied[0], ())))  # the other shard has none yet
    assert already_applied(nothing, order, spec(algorithm="downpour")) == []


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, Position(epoch=1, examples=100))
    (tmp_path / "c").rename(tmp_path / "000000000100")
    write(tmp_path, Position(epoch=2, examples=200))
    (tmp_path / "c").rename(tmp_path / "000000000200")
    resume = tmp_path / "000000000200"
    with (resume / "model.safetensors").open("r+b") as file:
        file.truncate(100)
    setup = set_up(spec(checkpoint={"resume": str(resume)}), None)
    assert setup.begin()[1].epoch == 1
    assert setup.run_layout().damaged == (f"{resume / 'model.safetensors'} is not as it was written",)
