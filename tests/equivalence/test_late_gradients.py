"""`downpour` with a rule for late gradients: plain where nothing is late, or where the rule is turned off."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from tests.equivalence.harness import RECIPES, Run, run_through_shards, serial, step_batches
from tests.equivalence.test_downpour import spec
from tests.local_runs import LocalRun
from trainers.optim.late.compensation import MEAN_SQUARE
from trainers.optim.late.gap import MEAN_SQUARE_STEP
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint

PLAIN = {"max_staleness": None}
RULE = {"server_rule": "delay_compensated", "max_staleness": None}
CONSTANT = RULE | {"compensation": {"adaptive": False}}
GAP = {"server_rule": "gap_aware", "max_staleness": None}
LAYERWISE = RULE | {"push": "layerwise", "bucket_bytes": 1}


def turned_off(algorithm: dict) -> dict:
    return algorithm | {"compensation": {"lambda_0": 0.0} | algorithm.get("compensation", {})}


@pytest.mark.parametrize(
    "algorithm", [RULE, CONSTANT, LAYERWISE, GAP], ids=["adaptive", "constant", "layerwise", "gap"]
)
def test_one_worker_whose_gradients_are_never_late_is_serial_sgd_bit_for_bit(algorithm: dict) -> None:
    for optimizer in ({"name": "momentum", "lr": 0.01, "weight_decay": 0.001}, {"name": "adagrad", "lr": 0.01}):
        run = Run(spec(algorithm=algorithm, optimizer=optimizer))
        assert torch.equal(run_through_shards(run).params, serial(run, step_batches(run), "mean"))


def test_one_worker_is_serial_sgd_with_groups_of_parameters_and_a_part_of_them_frozen() -> None:
    run = Run(spec(algorithm=RULE, **RECIPES["groups of parameters"]))
    assert torch.equal(run_through_shards(run).params, serial(run, step_batches(run), "mean"))


@pytest.mark.parametrize("algorithm", [RULE, CONSTANT, LAYERWISE], ids=["adaptive", "constant", "layerwise"])
def test_at_lambda_0_three_workers_have_the_bits_of_the_plain_rule_and_otherwise_not(algorithm: dict) -> None:
    fields = {"epochs": 1, "clip": {"value": 0.05}, "ema": {"decay": 0.9}}
    plain = {name: value for name, value in algorithm.items() if name not in ("server_rule", "compensation")}
    found = run_through_shards(Run(spec(3, algorithm=plain, **fields)), seed=4)
    off = run_through_shards(Run(spec(3, algorithm=turned_off(algorithm), **fields)), seed=4)
    on = run_through_shards(Run(spec(3, algorithm=algorithm, **fields)), seed=4)
    assert max(found.staleness) > 1
    assert off.staleness == on.staleness == found.staleness
    assert torch.equal(off.params, found.params)
    assert not torch.equal(on.params, found.params)
    assert on.leases is not None
    audit = on.leases.audit(0)
    assert (audit.trained, audit.lost, audit.duplicated) == (203, 0, 0)


@pytest.mark.parametrize("fields", [{}, {"optimizer": {"name": "muon", "lr": 0.01, "weight_decay": 0.0}}])
def test_a_gap_changes_what_three_workers_learn_and_nothing_else(fields: dict) -> None:
    plain, gap = (run_through_shards(Run(spec(3, algorithm=a, epochs=1, **fields)), seed=4) for a in (PLAIN, GAP))
    assert max(plain.staleness) > 1
    assert gap.staleness == plain.staleness
    assert not torch.equal(gap.params, plain.params)
    assert gap.leases is not None
    audit = gap.leases.audit(0)
    assert (audit.trained, audit.lost, audit.duplicated) == (203, 0, 0)


def test_muon_takes_compensated_gradients_too() -> None:
    optimizer = {"name": "muon", "lr": 0.01, "weight_decay": 0.0}
    plain, off, on = (
        run_through_shards(Run(spec(2, algorithm=algorithm, optimizer=optimizer, epochs=1)), seed=1).params
        for algorithm in ({"max_staleness": None}, turned_off(RULE), RULE)
    )
    assert torch.equal(off, plain)
    assert not torch.equal(on, plain)


@pytest.mark.parametrize(
    ("algorithm", "vector"), [(RULE, MEAN_SQUARE), (GAP, MEAN_SQUARE_STEP)], ids=["adaptive", "gap"]
)
def test_one_worker_that_goes_on_from_a_checkpoint_has_the_bits_and_the_mean_square(
    tmp_path: Path, algorithm: dict, vector: str
) -> None:
    """A run with the plain rule leaves the mean square aside."""

    def trained(name: str, epochs: int, resume: Path | None = None, **rule: object) -> tuple[Path, Checkpoint]:
        fields = {"epochs": epochs, "algorithm": algorithm | rule, "model": "mlp"}
        fields |= {"checkpoint": {"resume": None if resume is None else str(resume)}}
        kept = LocalRun(spec(**fields), tmp_path / name).train()
        return kept, read_checkpoint(kept)

    (_, whole), (half, _) = trained("whole", 2), trained("half", 1)
    _, again = trained("again", 2, half)
    for name, named in whole.optimizer.items():
        assert all(torch.equal(again.optimizer[name][parameter], tensor) for parameter, tensor in named.items()), name
    assert any(tensor.any() for tensor in whole.optimizer[vector].values())
    _, plain = trained("plain", 2, half, server_rule="plain")
    assert vector not in plain.optimizer
    for other in (again, plain):
        assert all(torch.equal(other.model[parameter], tensor) for parameter, tensor in whole.model.items())


def test_only_the_adaptive_rule_keeps_a_vector() -> None:
    adaptive, constant = (Run(spec(algorithm=algorithm)).optimizer for algorithm in (RULE, CONSTANT))
    assert MEAN_SQUARE in adaptive.state_names
    assert MEAN_SQUARE not in constant.state_names


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_push": 2, "max_staleness": 1}, "num_push: 1 and num_fetch: 1"),
        ({"num_fetch": 2}, "num_push: 1 and num_fetch: 1"),
        ({"server_rule": "plain", "compensation": {"lambda_0": 1}}, "only server_rule: delay_compensated"),
        ({"push": "layerwise", "backprop": {"groups": 2, "delay": 1}}, "use delay: 0"),
        ({"server_rule": "gap_aware", "compensation": {"lambda_0": 1}}, "only server_rule: delay_compensated"),
        ({"server_rule": "gap_aware", "num_fetch": 2}, "num_push: 1 and num_fetch: 1"),
        ({"compensation": {"lambda_0": -1}}, "greater than or equal to 0"),
    ],
)
def test_what_it_is_not_defined_for_is_refused(fields: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TrainSpec.model_validate({"data": "digits", "algorithm": {"name": "downpour"} | RULE | fields})
