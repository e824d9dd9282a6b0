"""Models that are compiled to train: the same bits on any number of workers and through a resume."""

import gzip
import json
import os
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.local_runs import LocalRun
from trainers.data.loading.files import COMPILED, remove_forsaken_files
from trainers.errors import SpecRejected
from trainers.models.passes.compiled import check_compiler, is_compiling
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint
from trainers.training.setup import check, set_up
from trainers.training.step_tracer import StepTracer

NET = "tests.gpu.nets:small_net"


def spec(count: int, **changes: object) -> TrainSpec:
    """Three steps an epoch, whose minibatches are all of one size, with all that a recipe may have."""
    groups = [{"match": "*.bias", "lr": 0.04}, {"match": "norm.weight", "frozen": True}]
    fields = {
        "workers": {"count": count, "virtual": 3}, "data": {"name": "digits", "limit": 14}, "batch": 2, "epochs": 1,
        "model": {"name": NET, "compile": True}, "optimizer": {"name": "momentum", "lr": 0.02, "groups": groups},
        "ema": {"decay": 0.6}, "clip": {"norm": 0.5},
    }  # fmt: skip
    return TrainSpec.model_validate(fields | changes)


@pytest.mark.long  # compiling takes some ten seconds
@pytest.mark.filterwarnings("default")  # torch looks for one of its own, which must not be raised there
def test_a_run_goes_on_on_other_workers_with_the_bits_of_one_that_was_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import cpp_builder

    tracer = StepTracer()

    def run(folder: str, count: int, limit: int | None = None, **changes: object) -> dict[str, Tensor]:
        found = read_checkpoint(LocalRun(spec(count, **changes), tmp_path / folder, limit=limit, tracer=tracer).train())
        return found.model | {f"average of {name}": value for name, value in found.optimizer["ema"].items()}

    compilers, call = [], cpp_builder.run_compile_cmd
    monkeypatch.setattr(
        cpp_builder, "run_compile_cmd", lambda *a, **k: (compilers.append(is_compiling()), call(*a, **k))
    )
    whole, half = run("whole", 1), run("half", 2, limit=2)
    tracer.begin(1, uses_gpu=False)
    rest = run("rest", 3, checkpoint={"resume": str(tmp_path / "half" / "checkpoint")})
    events = json.loads(gzip.decompress(tracer.look(0, "worker").file))["traceEvents"]
    assert {"forward", "backward", "update"} < {event["name"] for event in events}, "it is traced as any other model is"
    assert any("CompiledFunction" in event["name"] for event in events)
    plain = run("plain", 1, model=NET)
    assert whole.keys() == half.keys() == plain.keys()
    assert set(compilers) == {True}
    assert not is_compiling()
    for name, value in plain.items():
        torch.testing.assert_close(whole[name], value, rtol=1e-4, atol=1e-5)
        assert torch.equal(rest[name], whole[name])
    setup = set_up(spec(1), None)
    with setup.dataset:
        check(setup)
        assert setup.run_layout().compiled_s > 0
        with setup.replica.evaluating(setup.replica.initial_params(), {}) as model:
            assert model is setup.replica.model is not setup.replica.compiled
        monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
        with pytest.raises(SpecRejected, match="no C\\+\\+ compiler"):
            check_compiler(setup.replica.device)


def test_what_a_killed_process_has_compiled_is_removed_by_the_next() -> None:
    folders = [Path(tempfile.gettempdir(), f"{COMPILED}{pid}") for pid in (os.getppid(), 2**31)]  # no process has that
    for folder in folders:
        folder.mkdir(exist_ok=True)
    remove_forsaken_files()
    assert [folder.exists() for folder in folders] == [True, False]
    folders[0].rmdir()


@pytest.mark.parametrize(
    "algorithm", ["hybrid", {"name": "downpour", "push": "layerwise", "backprop": {"groups": 2, "delay": 0}}]
)
@pytest.mark.parametrize("field", ["compile", "checkpoint_activations"])
def test_algorithms_that_call_layers_by_themselves_are_refused(algorithm: object, field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is of the whole model.* or downpour without backprop"):
        spec(1, algorithm=algorithm, workers=1, model={"name": NET, field: True})


def test_what_is_compiled_is_not_recomputed() -> None:
    with pytest.raises(ValueError, match="leave this out, or compile"):
        spec(1, model={"name": NET, "compile": True, "checkpoint_activations": True})
