"""`hybrid` equals serial SGD on the whole batch in every scheme."""

import itertools
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
    serial,
    step_batches,
)
from tests.equivalence.hybrid_net import SCHEMES, distance, net, serial_params, spec
from trainers.collectives.protocol import Collectives
from trainers.errors import SpecRejected
from trainers.models.registry import build_model
from trainers.spec import TrainSpec, field_errors
from trainers.training.setup import check, set_up
from trainers.training.work import synchronous


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic"])
@pytest.mark.parametrize("split", ["pairs", "outputs"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_equals_serial_sgd_on_the_whole_batch(scheme: str, split: str, loss: str) -> None:
    count = 3 if loss == "logistic" else 2  # 33, 17 and 10 units are shared unevenly
    found = run_all_reduce(Run(spec(5, count, {"scheme": scheme, "split": split}, loss=loss), net))
    assert distance(found.params, serial_params(5, loss)) < 1e-5


def test_the_test_above_can_fail() -> None:
    """Other dropout masks, another loss."""
    expected = serial_params(5, "cross_entropy")
    assert distance(serial_params(5, "logistic"), expected) > 1e-2
    run = Run(spec(5, 2, seed=4), net)
    run.net = lambda seed: net(3)
    assert distance(run_all_reduce(run).params, expected) > 1e-2


def test_the_loss_is_every_algorithms() -> None:
    found = run_all_reduce(Run(spec(5, 1, {"name": "sync"}, loss="logistic"), net))
    assert distance(found.params, serial_params(5, "logistic")) < 1e-5


@pytest.mark.parametrize("count", [1, 5])
def test_any_number_of_workers_gives_the_same(count: int) -> None:
    found = run_all_reduce(Run(spec(5, count, {"scheme": "bc", "group": 3}), net))
    assert distance(found.params, serial_params(5, "cross_entropy")) < 1e-5


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_models_by_name(model: str) -> None:
    """One whose backbone has nothing to train, and one of five layers."""
    train = spec(3, 3, {"scheme": "c"}, epochs=1, model=model)
    run = Run(train, lambda seed: build_model(train.model, 10, (1, 8, 8), seed))
    assert distance(run_all_reduce(run).params, serial(run, step_batches(run), "mean")) < 1e-5


@pytest.mark.parametrize("recipe", RECIPES)
def test_with_any_recipe_it_equals_serial_sgd(recipe: str) -> None:
    fields = RECIPES[recipe] | {"epochs": 2}
    run = Run(spec(3, 2, {"scheme": "b"}, **fields), net)
    assert distance(run_all_reduce(run).params, serial(run, step_batches(run), "mean")) < 1e-5


def test_the_losses_reported_are_those_of_the_examples() -> None:
    """All workers' reports together, whoever computed what."""
    for loss, split in itertools.product(("cross_entropy", "logistic"), ("pairs", "outputs")):
        reports = [
            run_all_reduce(Run(spec(5, count, {"split": split}, loss=loss, epochs=1), net)).reports for count in (1, 3)
        ]
        alone, shared = (sum(report.total.loss for report in each) for each in reports)
        assert alone == pytest.approx(shared, rel=1e-5)
        assert sum(report.examples for report in reports[1]) == 203


@pytest.mark.parametrize("kind", ["shared_memory", "process_group", "hierarchical"])
def test_workers_that_move_at_the_same_time_have_the_bits_of_those_that_take_turns(tmp_path: Path, kind: str) -> None:
    """Overlapping exchanges on the real transports, more turns than boxes."""
    run = Run(spec(5, 2, {"scheme": "c", "split": "outputs"}, epochs=1), net)
    contexts = [run.context() for _ in range(2)]  # made here, since threads share torch's generator
    works = [list(synchronous(run.dataset, run.order, run.ranks(rank, 2), 1)) for rank in range(2)]

    def body(collectives: Collectives) -> Tensor:
        algorithm = run.spec.algorithm.build(replace(contexts[collectives.rank], collectives=collectives))
        for work in works[collectives.rank]:
            algorithm.step(work)
        return algorithm.gather_state().params

    with rendezvous_for(kind) as rendezvous:
        found, _ = Groups(kind, tmp_path, rendezvous).run(2, body)
    assert torch.equal(found, run_all_reduce(run).params)


@pytest.mark.parametrize(
    ("algorithm", "pointer", "message"),
    [
        ({"scheme": "a", "fc_batch": "per_turn"}, "/algorithm/fc_batch", "set scheme to b, c or bc"),
        ({"scheme": "b", "group": 2}, "/algorithm/group", "only scheme bc has groups"),
        ({"scheme": "d"}, "/algorithm/scheme", "there are a, b, c, bc"),
    ],
)
def test_what_the_spec_shows_to_be_wrong(algorithm: dict[str, object], pointer: str, message: str) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        spec(2, 2, algorithm)
    (error,) = field_errors(caught.value, TrainSpec)
    assert error.pointer == pointer
    assert message in error.message


def test_what_the_model_shows_to_be_wrong_is_found_by_the_preflight() -> None:
    with pytest.raises(SpecRejected, match=r"^model.name: .*ends? .*"):
        check(set_up(spec(2, 2, model="squeezenet1_1", data={"name": "digits", "random_resized_crop": 64}), None))
    with pytest.raises(SpecRejected, match=r"^workers.count: 11 workers cannot share the 10 outputs"):
        check(set_up(spec(11, 11, {"split": "outputs"}, model="lenet5"), None))
