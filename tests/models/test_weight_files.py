"""Initial weights in the forms in which PyTorch's users have them; none of them can run code."""

import logging
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from pydantic import ValidationError
from safetensors.torch import save_file

from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.registry import build_model
from trainers.models.weight_files import read_weights
from trainers.spec import TrainSpec
from trainers.training.setup import set_up

SHAPE = (1, 8, 8)
STATE = build_model(ModelSpec(name="mlp"), 10, SHAPE, seed=7).state_dict()


def built(path: Path, **fields: Any) -> dict[str, torch.Tensor]:
    model = ModelSpec.model_validate({"name": "mlp", "weights": str(path)} | fields)
    return build_model(model, 10, SHAPE, seed=0).state_dict()


def written(folder: Path, form: str) -> Path:
    if form == "safetensors":
        save_file(STATE, folder / "model.safetensors")
    elif form == "distributed":
        with warnings.catch_warnings(action="ignore"):  # that it is one process that saves
            dcp.save({"model": STATE, "step": 3}, checkpoint_id=str(folder / "dcp"), no_dist=True)
        return folder / "dcp"
    elif form == "lightning":
        torch.save(
            {"epoch": 3, "state_dict": {f"net.{name}": one for name, one in STATE.items()}}, folder / "last.ckpt"
        )
        return folder / "last.ckpt"
    else:
        torch.save(STATE, folder / f"model.{form}")
    return folder if form == "safetensors" else folder / f"model.{form}"


@pytest.mark.parametrize(
    ("form", "key_mapping"),
    [
        ("safetensors", {}),
        ("pt", {}),
        ("bin", {}),
        ("lightning", {r"^net\.": ""}),
        ("distributed", {r"^model\.": ""}),
    ],
)
def test_a_model_begins_with_the_weights_of_a_file(tmp_path: Path, form: str, key_mapping: dict[str, str]) -> None:
    found = built(written(tmp_path, form), key_mapping=key_mapping, strict=True)
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)


def test_what_is_left_out_is_told_and_refused_where_all_must_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, *_, last = STATE
    state = {name: one for name, one in STATE.items() if name != last} | {first: torch.zeros(2), "extra": torch.ones(1)}
    torch.save(state, tmp_path / "part.pt")
    with caplog.at_level(logging.INFO):
        built(tmp_path / "part.pt")
    left_out = (
        f"these keep their initial values: {first}, {last}; of them have another shape: {first}; only in the file: e"
    )
    assert left_out in caplog.text
    with pytest.raises(SpecRejected, match=f"part.pt does not fit the model: {left_out}"):
        built(tmp_path / "part.pt", strict=True)


@pytest.mark.parametrize("form", ["part", "whole"])
def test_the_runs_log_tells_what_was_left_out(tmp_path: Path, form: str) -> None:
    module = build_model(ModelSpec(name="mlp"), 10, SHAPE, seed=7).state_dict()
    last = list(module)[-1]
    torch.save({name: one for name, one in module.items() if form == "whole" or name != last}, tmp_path / "w.pt")
    model = {"name": "mlp", "weights": str(tmp_path / "w.pt")}
    told = set_up(TrainSpec.model_validate({"model": model}), None).run_layout().weights
    taken = f"model.weights: of w.pt {len(module) - 1} tensors are taken; these keep their initial values: {last}"
    assert told == (taken if form == "part" else "")


def test_names_that_fit_nothing_are_shown_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        SpecRejected, match=r"it holds net\..*, the model .*; where only the names differ, give model.key_"
    ):
        built(written(tmp_path, "lightning"))
    with pytest.raises(SpecRejected, match=r"two tensors of .* would be same"):
        built(written(tmp_path, "pt"), key_mapping={".*": "same"})


class Runs:
    """What a pickle would run."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, (Path("ran"),)


@pytest.mark.parametrize("function", [os.mkdir, Path.mkdir])
@pytest.mark.parametrize("form", ["pt", "distributed"])
def test_no_file_runs_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, function: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, form)
    if form == "pt":
        torch.save({"weights": Runs(function)}, path)
    else:
        (path / ".metadata").write_bytes(pickle.dumps(Runs(function)))
    names = r"the model's state_dict\(\) alone \(it names (\w+.mkdir|getattr)\)|is no checkpoint of"
    with pytest.raises(SpecRejected, match=names):
        read_weights(path)
    assert not Path("ran").exists()


def test_a_damaged_file_and_one_without_tensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(b"no")
    with pytest.raises(SpecRejected, match=r"bad.pt holds more than tensors, or is damaged") as refused:
        read_weights(tmp_path / "bad.pt")
    assert "trust" not in str(refused.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecRejected, match=r"folder .*empty holds neither model.safetensors or its index"):
        read_weights(tmp_path / "empty")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(SpecRejected, match="has no tensors by name"):
        read_weights(tmp_path / "list.pt")
    with pytest.raises(SpecRejected, match="there is no file"):
        read_weights(tmp_path / "none.pt")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"strict": True}, "are about model.weights"),
        ({"weights": "w.pt", "key_mapping": {"(": ""}}, "is no regular expression"),
        ({"weights": "w.pt", "key_mapping": {"a": r"\1"}}, "is no regular expression"),
    ],
)
def test_the_spec_refuses_what_means_nothing(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        ModelSpec.model_validate({"name": "mlp"} | fields)
