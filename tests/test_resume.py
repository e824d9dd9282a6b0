"""What a checkpoint allows a run to go on with."""

from pathlib import Path

import pytest

from trainers.checkpoint import Checkpoint, Position, read_checkpoint, write_checkpoint
from trainers.errors import SpecRejected
from trainers.setup import set_up
from trainers.spec import TrainSpec


def spec(**fields: object) -> TrainSpec:
    base: dict[str, object] = {"data": {"name": "digits", "limit": 100}, "model": "mlp", "epochs": 5, "workers": 2}
    return TrainSpec.model_validate(base | fields)


def write(folder: Path, position: Position) -> str:
    """A checkpoint of `spec()` at a position."""
    setup = set_up(spec(), None)
    start, _ = setup.begin()
    model = setup.layout.named(start.whole.params)
    optimizer = {name: setup.layout.named(vector) for name, vector in start.whole.state.items()}
    write_checkpoint(folder / "c", Checkpoint(position, spec().model_dump(mode="json"), model, optimizer))
    return str(folder / "c")


def begin(resume: str, **fields: object) -> Position:
    return set_up(spec(checkpoint={"resume": resume}, **fields), None).begin()[1]


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
