"""A run on Ray whose average is evaluated, exported and kept."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from tests.runtime.runs import finished, spec
from trainers.data.datasets import open_dataset
from trainers.models.registry import build_model
from trainers.spec import ModelSpec
from trainers.training.export import export_model


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_the_average_is_evaluated_and_exported_and_both_are_kept(tmp_path: Path) -> None:
    fields = {"ema": {"decay": 0.9}, "clip": {"norm": 0.5}, "checkpoint": {"keep_best": "loss"}}
    train = spec(workers=2, epochs=1, **fields)
    run = finished("averages", train, tmp_path)
    result, (evaluation,) = run.of("result")[-1], run.of("evaluation")
    (kept,) = (tmp_path / "checkpoints").iterdir()
    raw, average = load_file(tmp_path / "raw.safetensors"), load_file(result["model_path"])
    states, best = load_file(kept / "optimizer.safetensors"), load_file(tmp_path / "best.safetensors")
    assert not any(torch.equal(raw[name], value) for name, value in average.items())
    for name, value in load_file(kept / "model.safetensors").items():
        assert torch.equal(raw[name], value)
        assert torch.equal(average[name], states[f"ema/{name}"])
        assert torch.equal(average[name], best[name])
    model = build_model(ModelSpec(name="mlp"), 10, (1, 8, 8), 0)
    model.load_state_dict(average)
    with open_dataset(train.data, train.seed) as data, torch.no_grad():
        loss = sum(float(F.cross_entropy(model(b.images), b.labels, reduction="sum")) for b in data.test_batches(500))
        assert evaluation["test_loss"] == pytest.approx(loss / data.num_test, rel=1e-4)
    export_model(tmp_path, "safetensors", tmp_path / "written", raw=True)
    assert (tmp_path / "written").read_bytes() == (tmp_path / "raw.safetensors").read_bytes()
    assert all(step["gradient_norm"] > 0 for step in run.of("step"))
