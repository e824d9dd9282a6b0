"""Blocks that compute their activations again: the bits of a model that keeps them, and less that is kept."""

import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.local_runs import LocalRun
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint
from trainers.training.setup import set_up


class Block(nn.Module):
    """Batch norm, one dropout that is called twice, one of torch's own stream, and a buffer that the output depends
    on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm, self.drop = nn.BatchNorm1d(64), nn.Dropout(0.3)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.scale *= 0.9
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        return x + self.scale * self.drop(nn.functional.dropout(self.second(hidden), 0.2, self.training))


def deep_net(**_: object) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Sequential(Block(), Block(), Block()), nn.Linear(64, 10))


NET = "tests.models.test_recomputed:deep_net"
GPT = {"name": "gpt", "kwargs": {"layers": 2, "heads": 2, "width": 16, "dropout": 0.2}}


def spec(count: int = 1, which: object = True, **changes: object) -> TrainSpec:
    model = {"name": NET, "checkpoint_activations": which} | changes.pop("model", {})  # type: ignore[operator]
    fields = {"workers": {"count": count, "virtual": 3}, "data": {"name": "digits", "limit": 14}, "batch": 2}
    return TrainSpec.model_validate({"epochs": 1, **fields, **changes, "model": model})


def trained(train: TrainSpec, folder: Path) -> Checkpoint:
    return read_checkpoint(LocalRun(train, folder).train())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", [NET, "gpt"])
def test_the_bits_are_those_of_a_model_that_keeps_its_activations(name: str, precision: str, tmp_path: Path) -> None:
    changes: dict[str, object] = {"precision": precision}
    if name == "gpt":
        (tmp_path / "text").write_text("a text of which a window has eight letters " * 9)
        data = {"name": "text", "root": str(tmp_path / "text"), "context": 8, "limit": 14}
        changes |= {"model": GPT, "task": "language_model", "data": data}
    kept = trained(spec(which=False, **changes), tmp_path / "kept")
    for count, which in ((1, True), (3, ["1.*" if name == NET else "blocks.*"])):
        found = trained(spec(count, which, **changes), tmp_path / str(count))
        assert found.model.keys() == kept.model.keys()
        for key, value in kept.model.items():
            assert torch.equal(found.model[key], value), key
        assert found.buffers.keys() == kept.buffers.keys()
        for rank, named in kept.buffers.items():
            assert all(torch.equal(found.buffers[rank][key], value) for key, value in named.items())


@pytest.mark.parametrize("which", [True, ["1.0", "1.2"], False])
def test_what_a_block_computes_is_not_kept(which: object) -> None:
    setup, kept = set_up(spec(which=which), None), []
    replica = setup.replica
    inner = replica.model.get_submodule("1.0.first")
    inner.register_forward_hook(lambda _module, _inputs, output: kept.append(weakref.ref(output)))
    counts: list[int] = []
    replica.model.register_forward_hook(lambda *_: counts.append(sum(ref() is not None for ref in kept)))
    with setup.dataset:
        params = replica.initial_params()
        batch = next(iter(setup.dataset.batches([(0, setup.order.examples(0, 0))])))
        replica.gradient(params, batch, torch.zeros_like(params))
    assert counts == [0 if which else 1]
    assert len(kept) == (2 if which else 1)


@pytest.mark.parametrize(
    ("which", "name", "why"),
    [(True, "lenet5", "no blocks that repeat"), (["layers.*"], NET, r"is named layers\.\*; it has 0, 1, 1\.0")],
)
def test_a_model_without_such_blocks_is_refused(which: object, name: str, why: str) -> None:
    with pytest.raises(SpecRejected, match=f"^model.checkpoint_activations: .*{why}"):
        set_up(spec(which=which, model={"name": name}), None)
