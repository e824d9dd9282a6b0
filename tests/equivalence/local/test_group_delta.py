"""`mixed` with `push: delta`: `downpour` with that where groups are of one, `sync` where there is one group."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.equivalence.harness import (
    RECIPES,
    Run,
    digits_spec,
    run_all_reduce,
    run_through_shards,
    serial,
    step_batches,
)
from tests.equivalence.local.test_delta import ADAMW, NEAR, PLAIN, RULES, SGD
from tests.local_runs import LocalRun
from trainers.algorithms.mixed.delta import GroupDeltaPushes
from trainers.elastic.lease_table import Audit
from trainers.spec import TrainSpec, field_errors
from trainers.spec.advice import advice
from trainers.spec.recipe import explain
from trainers.training.checkpoint import Checkpoint, read_checkpoint

OPTIMIZERS: dict[str, Any] = {
    "sgd": SGD,
    "momentum": {"name": "momentum", "lr": 0.02, "weight_decay": 0.001},
    "rmsprop": {"name": "rmsprop", "lr": 0.003, "epsilon": 0.001},
    "adamw": ADAMW,
}


def spec(workers: int, group: object, outer: object, steps: int = 3, optimizer: object = SGD, **more: Any) -> TrainSpec:
    own = {"max_staleness": more.pop("max_staleness", None)}
    algorithm = {"name": "mixed", "group": group, "push": "delta", "steps": steps, "outer": outer} | own
    return digits_spec({"algorithm": algorithm, "workers": workers, "ps": 2, "optimizer": optimizer} | more)


# -- what it must equal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", RULES, ids=str)
@pytest.mark.parametrize("batch", [8, 7])
def test_a_group_of_one_is_downpour_with_push_delta_bit_for_bit(batch: int, outer: object) -> None:
    """A group divides the sum over its minibatch, Downpour scales within back-propagation: to the bit the same where
    the minibatch is a power of two, and so loses none; else to float tolerance."""
    more: dict[str, Any] = {"batch": batch, "data": {"name": "digits", "limit": 200, "random_crop": 1}}
    more |= {"optimizer": ADAMW, "clip": {"norm": 0.5}, "schedule": "cosine"}
    mixed = Run(spec(1, 1, outer, **more))
    fields = mixed.spec.algorithm.model_dump(include={"push", "steps", "outer"})
    downpour = Run(digits_spec({"algorithm": {"name": "downpour", **fields}, "workers": 1, "ps": 2, **more}))
    found, expected = (run_through_shards(run).params for run in (mixed, downpour))
    torch.testing.assert_close(found, expected, **({"rtol": 0, "atol": 0} if batch == 8 else NEAR))
    other = run_through_shards(Run(spec(1, 1, "polyak" if outer != "polyak" else "nesterov", **more))).params
    assert not torch.allclose(other, expected, **NEAR)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("count", [2, 3])
def test_one_group_and_a_plain_average_are_sync_with_the_groups_optimizer(count: int, optimizer: str) -> None:
    """29 minibatches an epoch: its last step has fewer than the group has workers, and its last round fewer steps. The
    optimizer's state goes on from round to round."""
    run = Run(spec(count, count, PLAIN, optimizer=OPTIMIZERS[optimizer], max_staleness=0, schedule="cosine"))
    found = run_through_shards(run, lease_size=12 * count)
    sync = Run(TrainSpec.model_validate(run.spec.model_dump() | {"algorithm": "sync"}))
    expected = run_all_reduce(sync).params
    torch.testing.assert_close(found.params[: len(expected)], expected, **NEAR)
    assert set(found.staleness) == {0}
    longer = Run(spec(count, count, PLAIN | {"lr": 0.9}, optimizer=OPTIMIZERS[optimizer], schedule="cosine"))
    other = run_through_shards(longer, lease_size=12 * count).params
    assert not torch.allclose(other[: len(expected)], expected, **NEAR)


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_group_and_one_round_an_epoch_are_serial_sgd_with_any_recipe(recipe: str) -> None:
    """Any optimizer, groups of parameters, frozen ones, scaling, warm-up, schedule."""
    run = Run(spec(2, "node", PLAIN, 1000, max_staleness=0, **RECIPES[recipe]))
    found = run_through_shards(run, lease_size=1000).params
    torch.testing.assert_close(found, serial(run, step_batches(run), "sum"), **NEAR)


# -- what a run promises ----------------------------------------------------------------------------------------------


def test_all_workers_of_a_group_have_the_same_bits_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, state of the optimizer and learning rate, however the two groups take turns."""
    seen: dict[int, list[tuple[float, list[Tensor]]]] = {}
    step = GroupDeltaPushes.step

    def watched(self: GroupDeltaPushes, work: Any) -> Any:
        report = step(self, work)
        vectors = [vector.clone() for vector in (self.own.params, *self.own.state.values())]
        seen.setdefault(work.minibatches[0].virtual_rank, []).append((report.learning_rate, vectors))
        return report

    monkeypatch.setattr(GroupDeltaPushes, "step", watched)
    run_through_shards(Run(spec(4, 2, "nesterov", optimizer=ADAMW, schedule="cosine")), seed=3, lease_size=6)
    for one, other in ((0, 1), (2, 3)):
        assert len(seen[one]) == len(seen[other]) > 10
        for (rate, vectors), (same, copies) in zip(seen[one], seen[other], strict=True):
            assert rate == same
            assert all(torch.equal(a, b) for a, b in zip(vectors, copies, strict=True))


@pytest.mark.parametrize("outer", RULES, ids=str)
@pytest.mark.parametrize("max_staleness", [0, None])
def test_every_example_once_whatever_the_interleaving(outer: object, max_staleness: int | None) -> None:
    """Leases that are no multiple of the group or the round as well."""
    fields = {} if max_staleness is None else {"precision": "bfloat16", "ema": {"decay": 0.9}, "wire": "bfloat16"}
    run = Run(spec(6, 2, outer, 2, ADAMW, max_staleness=max_staleness, epochs=3, **fields))
    outcome = run_through_shards(run, seed=4, lease_size=5)
    assert sum(report.examples for report in outcome.reports) == 3 * 203
    assert outcome.leases is not None
    for epoch in range(3):
        assert outcome.leases.audit(epoch) == Audit(epoch, trained=203, lost=0, duplicated=0)
    assert (max(outcome.staleness) > 2) == (max_staleness is None)
    assert outcome.params.isfinite().all()


def test_the_shards_get_one_push_a_round_of_a_group() -> None:
    """28 minibatches an epoch, of which 4 make a round of each of two groups: 1/4 of the bytes of single workers."""
    data = {"name": "digits", "limit": 196}
    mixed = run_through_shards(Run(spec(4, 2, PLAIN, 2, data=data)), lease_size=4)
    downpour = Run(digits_spec({"algorithm": "downpour", "workers": 4, "ps": 2, "data": data}))
    assert 4 * mixed.traffic.sent_bytes == run_through_shards(downpour, lease_size=4).traffic.sent_bytes > 0


def test_a_resumed_run_goes_on_with_the_outer_state_bit_for_bit(tmp_path: Path) -> None:
    """One group, whose own steps keep no state; a sum of pushes is under way when the first epoch ends."""

    def trained(name: str, epochs: int, resume: Path | None = None) -> tuple[Path, Checkpoint]:
        fields = {"epochs": epochs, "model": "mlp", "checkpoint": {"resume": None if resume is None else str(resume)}}
        kept = LocalRun(spec(2, 2, {"name": "nesterov", "pushes": 4}, 2, **fields), tmp_path / name).train()
        return kept, read_checkpoint(kept)

    (_, whole), (half, begun) = trained("whole", 2), trained("half", 1)
    _, again = trained("again", 2, half)
    assert begun.optimizer.keys() == whole.optimizer.keys() == again.optimizer.keys() > set()
    for name, tensor in whole.model.items():
        assert torch.equal(again.model[name], tensor), name
    for state, named in whole.optimizer.items():
        assert all(torch.equal(again.optimizer[state][name], tensor) for name, tensor in named.items()), state


# -- its spec ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "pointer", "message"),
    [
        ({"steps": 4, "push": "whole"}, "/algorithm/steps", "set push: delta"),
        ({"outer": "polyak", "push": "whole"}, "/algorithm/outer", "set push: delta"),
        ({"num_push": 2}, "/algorithm/push", "leave num_push and num_fetch"),
        ({"dynamic": True}, "/algorithm/dynamic", "no such field"),
        ({"outer": {"name": "delayed_nesterov", "activation": 0.6}}, "/algorithm/outer", "use 0.5 or less"),
        ({"group": "node"}, "/algorithm/outer", "{name: delayed_nesterov, pushes: NUMBER}, or group a number"),
        (
            {"group": "node", "outer": {"name": "polyak", "pushes": "workers"}},
            "/algorithm/outer",
            "{name: polyak, pushes: NUMBER}",
        ),
        ({"group": 3}, "/algorithm/group", "use 1, 2 or 4, or node"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], pointer: str, message: str) -> None:
    algorithm = {"name": "mixed", "push": "delta", "group": 2} | fields
    with pytest.raises(ValidationError) as error:
        TrainSpec.model_validate({"algorithm": algorithm, "workers": 4})
    found = [(found.pointer, found.message) for found in field_errors(error.value, TrainSpec)]
    assert len(found) == 1
    assert found[0][0] == pointer
    assert message in found[0][1]


def test_nothing_of_a_change_is_kept_back() -> None:
    with pytest.raises(ValidationError, match="the shards take changes whole"):
        spec(4, 2, "average", compress={"top_k": 0.1})


def test_left_out_it_is_the_sources_rule_and_adamw() -> None:
    train = TrainSpec.model_validate({"algorithm": {"name": "mixed", "push": "delta", "group": 2}, "workers": 4})
    assert (train.optimizer.name, train.algorithm.traits.num_push) == ("adamw", 50)
    assert TrainSpec.model_validate_json(train.model_dump_json()) == train


def test_explain_counts_groups() -> None:
    train = spec(8, 2, "delayed_nesterov", optimizer=ADAMW, clip={"norm": 1.0})
    found = explain(train, 203).quantities
    assert "with each 4 pushes: v <- 0.9 v + their mean" in found["outer"].formula
    assert found["optimizer_state"].value == 4 * 2 * 3
    assert found["worker_memory"].value == 4 * (1 + 1 + 3 + 3)
    assert (found["batch"].value, found["batch"].formula[:11]) == (14, "g n = 2 x 7")
    assert "each group's own step" in found["clip"].formula
    assert found["steps_per_epoch"].value == 15
    (said,) = [said for said in advice(spec(4, 2, "polyak", 9), 203) if said.startswith("algorithm.steps")]
    assert "give 8 or less" in said
