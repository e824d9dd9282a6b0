"""`millrace check`: models that break the promise of the same bits are found, with what breaks it."""

from pathlib import Path

import pytest

from trainers.errors import SpecRejected
from trainers.spec import TrainSpec
from trainers.training import bits_check
from trainers.training.bits_check import LEAVES_STATE, STEPS, UNREPEATABLE, BitsReport, check_bits


def spec(how: str, **fields: object) -> TrainSpec:
    model = {"name": "tests.training.uncheckednets:careless", "kwargs": {"how": how}}
    data = {"name": "digits", "limit": 12}
    return TrainSpec.model_validate({"model": model, "data": data, "batch": 2, "algorithm": "downpour"} | fields)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are slow to start: all that they do is done here, as if the second one computed nothing."""

    def trained(spec: TrainSpec, _processes: int, folder: Path) -> object:
        folder.mkdir()
        bits_check._work(bits_check.tried(spec, 1).model_dump_json(), 0, 1, str(folder))
        found = bits_check._read(folder / "0.json", 0)
        return found["steps"], tuple(found["changed"])

    monkeypatch.setattr(bits_check, "_trained", trained)


@pytest.mark.usefixtures("here")
def test_what_differs_from_one_start_to_the_next_is_named() -> None:
    found = check_bits(spec("unseeded"))
    assert (found.same, found.steps, found.differs) == (False, 1, "first.weight")
    assert found.cause == UNREPEATABLE
    assert found.changed == ("Careless.generator",)


@pytest.mark.usefixtures("here")
def test_attributes_that_change_are_named() -> None:
    assert check_bits(spec("counts")) == BitsReport(same=True, steps=STEPS, changed=("Careless.calls",))


@pytest.mark.long
def test_what_one_virtual_worker_leaves_to_the_next_is_found_on_two_processes() -> None:
    found = check_bits(spec("shares"))
    assert (found.steps, found.differs, found.cause) == (1, "first.weight", LEAVES_STATE)


@pytest.mark.long
def test_a_model_that_draws_from_torch_passes() -> None:
    assert check_bits(spec("well")) == BitsReport(same=True, steps=STEPS)


@pytest.mark.usefixtures("here")
def test_a_spec_that_cannot_be_trained_is_refused_as_in_a_run() -> None:
    with pytest.raises(SpecRejected, match="how"):
        check_bits(spec("well", model={"name": "tests.training.uncheckednets:careless"}))
