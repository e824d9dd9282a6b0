"""The state of a `hybrid` run: what each worker sees of it, and what checkpoints hold."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contracts.groups import Groups, rendezvous_for
from tests.equivalence.harness import (
    RECIPES,
    Run,
    run_all_reduce,
    run_through_shards,
)
from tests.equivalence.hybrid_net import distance, net, spec, vectors
from trainers.collectives.protocol import Collectives
from trainers.models.registry import build_model
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, Position, write_checkpoint
from trainers.training.setup import set_up
from trainers.training.work import synchronous


@pytest.mark.parametrize("fc_batch", ["whole", "per_turn"])
def test_on_one_node_every_worker_has_the_whole_of_the_last_two_versions_without_a_word_to_the_others(
    tmp_path: Path, fc_batch: str
) -> None:
    recipe = RECIPES["linear, gradual, equation 10"] | {"epochs": 1}
    run = Run(spec(5, 3, {"scheme": "b", "fc_batch": fc_batch}, **recipe), net)
    contexts = [run.context() for _ in range(3)]
    works = [list(synchronous(run.dataset, run.order, run.ranks(rank, 3), 1)) for rank in range(3)]

    def body(collectives: Collectives) -> list[list[Tensor]]:
        algorithm = run.spec.algorithm.build(replace(contexts[collectives.rank], collectives=collectives))
        found = [vectors(algorithm.local_state())]
        for work in works[collectives.rank]:
            algorithm.step(work)
            gathered = vectors(algorithm.gather_state())
            for one, other in zip(
                [found[-1], gathered], [algorithm.local_state(1), algorithm.local_state()], strict=True
            ):
                assert all(map(torch.equal, one, vectors(other)))
            found.append(gathered)
            collectives.barrier().wait()  # nobody goes on to the next version before all have looked at these two
        return found

    with rendezvous_for("shared_memory") as rendezvous:
        first, *others = Groups("shared_memory", tmp_path, rendezvous).run(3, body)
    for other in others:
        assert all(
            torch.equal(a, b)
            for mine, theirs in zip(first, other, strict=True)
            for a, b in zip(mine, theirs, strict=True)
        )
    elsewhere = run_all_reduce(run)
    assert elsewhere.buffers is not None
    assert all(map(torch.equal, first[-1], vectors(elsewhere.buffers)))


def trained(train: TrainSpec, folder: Path) -> tuple[Tensor, Path]:
    """Train on the local transport from what the spec resumes from; the parameters and a checkpoint of the end."""
    setup = set_up(train, None)
    start, position = setup.begin()
    run = Run(train, lambda seed: build_model(train.model, 10, (1, 8, 8), seed))
    run.start = lambda: start
    left = train.epochs - position.epoch
    run.spec = train.model_copy(update={"epochs": left})
    asynchronous = train.algorithm.traits.uses_parameter_server
    outcome = run_through_shards(run) if asynchronous else run_all_reduce(run)
    params = outcome.params[: setup.layout.numel]
    state = outcome.buffers.state if outcome.buffers else start.buffers.state
    named = {name: setup.layout.named(vector) for name, vector in state.items()}
    ended = Position(epoch=train.epochs, examples=train.epochs * 203, learning_rate=0.05)
    write_checkpoint(folder, Checkpoint(ended, train.model_dump(mode="json"), setup.layout.named(params), named))
    return params, folder


@pytest.mark.parametrize("other", [{"name": "sync"}, {"name": "downpour", "max_staleness": 0}])
def test_checkpoints_are_whole_and_pass_from_one_algorithm_to_another(tmp_path: Path, other: dict[str, object]) -> None:
    """There and back; `hybrid` on 2 and on 3 workers. What came of it is the state of a run that never changed."""
    first, folder = trained(spec(3, 2, model="lenet5", epochs=1), tmp_path / "hybrid")
    resume = {"resume": str(folder)}
    fields = {"model": "lenet5", "epochs": 2, "checkpoint": resume}
    asynchronous = other["name"] != "sync"
    workers = {"workers": 1} if asynchronous else {}
    second, folder = trained(spec(3, 2, **fields | {"algorithm": other} | workers), tmp_path / "other")
    assert distance(second, first) > 1e-3
    third, _ = trained(spec(3, 3, **fields | {"epochs": 3, "checkpoint": {"resume": str(folder)}}), tmp_path / "back")
    assert distance(third, second) > 1e-3
    start, _ = set_up(spec(3, 3, **fields | {"epochs": 3, "checkpoint": {"resume": str(folder)}}), None).begin()
    assert torch.equal(start.buffers.params, second)
    if not asynchronous:
        expected, _ = trained(spec(3, 2, **fields), tmp_path / "stayed")
        assert distance(second, expected) < 1e-5


def test_the_state_of_the_rule_is_whole_too() -> None:
    found = run_all_reduce(Run(spec(5, 3), net)).buffers
    expected = run_all_reduce(Run(spec(5, 3, {"name": "sync"}), net)).buffers
    assert found is not None
    assert expected is not None
    assert distance(found.state["momentum"], expected.state["momentum"]) < 1e-4
    assert distance(found.params, expected.params) < 1e-5
