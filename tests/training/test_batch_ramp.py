"""`scale_batch`: the batch follows the workers, the learning rate the batch, and every example is trained once."""

from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from tests.equivalence.harness import SmallNet, written_loss
from tests.equivalence.optimizers import torch_optimizer
from tests.local_runs import LocalEndpoint
from trainers.collectives.local import LocalGroup
from trainers.data.order import Order
from trainers.links.local import LocalWorld
from trainers.models.dropout import replace_dropout
from trainers.models.module_buffers import ModuleBuffers, in_common
from trainers.models.registry import build_model
from trainers.spec import TrainSpec, field_errors
from trainers.training.batch_ramp import begin_stretch, factor_in_force, ramped
from trainers.training.checkpoint import Checkpoint, write_checkpoint
from trainers.training.loop import ModelVersion, Ports, TrainingLoop
from trainers.training.messages import GenerationEnd, GenerationStart
from trainers.training.position import Position
from trainers.training.setup import Setup, set_up
from trainers.training.step_gate import StepGate
from trainers.training.work import synchronous

EXAMPLES, EACH = 203, 2


def small_net(num_classes: int, in_channels: int) -> nn.Module:
    return SmallNet()


def spec(**fields: object) -> TrainSpec:
    """Two workers with two virtual workers each; equation 10, whose velocity must be corrected when the rate moves."""
    base = {
        "workers": {"count": 2, "virtual": 2 * EACH},
        "model": "tests.training.test_batch_ramp:small_net",
        "data": {"name": "digits", "limit": EXAMPLES, "random_crop": 1},
        "batch": 5,
        "epochs": 3,
        "seed": 3,
        "optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.001, "equation": 10},
        "scaling": {"name": "linear", "weight_decay": "keep"},
        "elastic": {"mode": "scale_batch", "ramp_epochs": 0.5},
    }
    return TrainSpec.model_validate(base | fields)


class Members:
    """Workers of one run in threads, a generation at a time."""

    def __init__(self, train: TrainSpec, folder: Path) -> None:
        self.spec, self.folder, self.world = train, folder, LocalWorld(seed=1)
        self.setups: list[Setup] = []
        self.versions: list[ModelVersion | None] = []
        self.generations, self.position, self.rates, self.epochs = 0, None, [], []  # type: ignore[var-annotated]

    def train(self, count: int, steps: int | None) -> GenerationEnd:
        """So many steps with so many workers; who is new has nothing, who leaves takes nothing along."""
        while len(self.setups) < count:
            self.setups.append(set_up(self.spec, None))
            self.versions.append(None)
        group = LocalGroup(self.world, list(range(count)))
        root = 0 if self.position is not None else None
        endpoint = LocalEndpoint(self.generations, 0, count, group)
        states = tuple(self.versions[0].whole.state) if self.versions and self.versions[0] else ()
        begin = GenerationStart(0, endpoint, self.position, root, states, num_virtual=self.spec.virtual_for(count))
        trainers = [self._trainer(replace(begin, number=k, endpoint=replace(endpoint, rank=k)), steps) for k in
                    range(count)]  # fmt: skip
        ended = self.world.run([trainer.train for trainer in trainers])
        self.versions[:count] = [trainer.version for trainer in trainers]
        self.generations, self.position = self.generations + 1, ended[0].position
        assert [one.lost for one in ended] == [""] * count
        assert ended[0].has_version
        return ended[0]

    def _trainer(self, begin: GenerationStart, steps: int | None) -> TrainingLoop:
        gate = StepGate()
        gate.release(steps)
        ports = Ports(lambda report: None, lambda dropped: None, lambda version: None, lambda clock: None)
        return TrainingLoop(self.setups[begin.number], self.folder, begin, gate, ports, self.versions[begin.number])


def rate_at(before: float, wanted: float, since: int) -> float:
    """A learning rate that rises over half an epoch and falls at once."""
    return wanted if wanted < before else before + (wanted - before) * min(1.0, since / (0.5 * EXAMPLES))


def written(train: TrainSpec, generations: list[tuple[int, int | None]]) -> torch.Tensor:
    """The same in a serial program, with the rule of `linear` and the ramp written out."""
    setup = set_up(train, None)
    model = build_model(train.model, 10, setup.dataset.facts.inputs, train.seed).to(memory_format=torch.channels_last)
    draws, optimizer = replace_dropout(model, train.seed), None
    optimizer = torch_optimizer(train, model)
    order, epoch, first, seen = Order(EXAMPLES, 5, 1, train.seed), 0, 0, 0
    in_force = 0.02 * generations[0][0] / 2
    for count, steps in generations:
        before, since, done, wanted = in_force, seen, 0, 0.02 * count / 2
        while epoch < train.epochs and (steps is None or done < steps):
            last = min(first + EACH * count, order.minibatches)
            rate = rate_at(before, wanted, seen - since)
            plan = [(epoch, order.examples(epoch, index)) for index in range(first, last)]
            optimizer.zero_grad()
            losses = []
            for batch in setup.dataset.batches(plan):
                draws.set(batch.epoch, batch.examples)
                losses.append(written_loss(train, model(batch.images), batch.labels))
            size = sum(len(examples) for _, examples in plan)
            (torch.stack(losses).sum() / size).backward()
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            seen, done = seen + size, done + 1
            epoch, first = (epoch + 1, 0) if last == order.minibatches else (epoch, last)
        in_force = rate_at(before, wanted, seen - since)
    return setup.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


def named_in(setup: Setup, vector: torch.Tensor) -> dict[str, torch.Tensor]:
    return dict(zip(setup.layout.names, setup.layout.views(vector), strict=True))


CHANGES: list[list[tuple[int, int | None]]] = [
    [(2, None)],
    [(2, 3), (4, None)],  # in the middle of an epoch, with a ramp
    [(3, 2), (1, 7), (4, 1), (2, 9), (3, None)],  # and back while the ramp goes on
]


@pytest.mark.parametrize("changes", CHANGES)
def test_it_equals_a_serial_program_whose_batch_and_rate_change_at_the_same_steps(
    changes: list[tuple[int, int | None]], tmp_path: Path
) -> None:
    members = Members(spec(), tmp_path)
    for count, steps in changes:
        ended = members.train(count, steps)
    assert ended.position.examples == 3 * EXAMPLES
    version = members.versions[0]
    assert version is not None
    expected = written(spec(), changes)
    torch.testing.assert_close(version.whole.params, expected, rtol=2e-4, atol=2e-5)
    if len(changes) > 1:
        undisturbed = written(spec(), CHANGES[0])
        assert not torch.allclose(expected, undisturbed, rtol=2e-3, atol=2e-4), "the test could not tell"


def test_a_checkpoint_of_any_moment_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """The ramp and the place in the epoch are part of what a run goes on from."""
    members = Members(spec(), tmp_path)
    members.train(2, 3)
    members.train(4, 2)
    version = members.versions[0]
    assert version is not None
    setup, whole = members.setups[0], version.whole
    named = {name: named_in(setup, vector) for name, vector in whole.state.items()}
    model = named_in(setup, whole.params)
    kept = Checkpoint(version.position, spec().model_dump(mode="json"), model, named, version.buffers)
    write_checkpoint(tmp_path / "kept", kept)
    members.train(4, None)
    resumed = Members(spec(workers={"count": 4, "virtual": 8}, batch={"per_worker": 5, "base": 20},
                           checkpoint={"resume": str(tmp_path / "kept")}), tmp_path)  # fmt: skip
    resumed.train(4, None)
    undisturbed, found = members.versions[0], resumed.versions[0]
    assert undisturbed is not None
    assert found is not None
    assert torch.equal(found.whole.params, undisturbed.whole.params)
    assert torch.equal(found.rows, undisturbed.rows)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=12), st.integers(1, 60), st.integers(1, 7))
def test_every_example_is_trained_once_an_epoch_whatever_the_changes(
    changes: list[tuple[int, int]], num_examples: int, n: int
) -> None:
    train = spec(batch=n, workers={"count": 1, "virtual": 1})
    place, trained = Position(), []
    for virtual, steps in [*changes, (1, 10**6)]:
        order = Order(num_examples, n, virtual, 0)
        place = begin_stretch(place, train, virtual, num_examples)
        start = (place.epoch, place.first + place.step * virtual)
        for work, _ in zip(synchronous(Nothing(), order, range(virtual), 2, start), range(steps), strict=False):  # type: ignore[arg-type]
            trained += [(work.epoch, minibatch.index) for minibatch in work.minibatches if minibatch.batch]
            ends = work.ends_epoch
            place = replace(
                place, epoch=place.epoch + ends, step=0 if ends else place.step + 1, first=0 if ends else place.first
            )
    minibatches = -(-num_examples // n)
    assert trained == [(epoch, index) for epoch in range(2) for index in range(minibatches)]


class Nothing:
    """A dataset whose batches are no more than there."""

    def batches(self, plan):  # type: ignore[no-untyped-def]
        return (True for _ in plan)

    def begin_epoch(self, epoch: int) -> None:
        pass


def test_the_rate_is_led_up_and_drops_at_once() -> None:
    train, schedule = spec(), spec().learning_rate(100)

    def rates(place: Position, virtual: int) -> list[float]:
        scaled = train.following(virtual)
        then = ramped(scaled.learning_rate(100), place, scaled, 100)
        return [then(place.examples + more) / schedule(0) for more in (0, 25, 50, 1000)]

    two = begin_stretch(Position(), train, 4, 100)
    assert rates(two, 4) == [1, 1, 1, 1]
    four = begin_stretch(replace(two, examples=300), train, 8, 100)
    assert rates(four, 8) == pytest.approx([1, 1.5, 2, 2])  # over half an epoch
    six = begin_stretch(replace(four, examples=325), train, 12, 100)
    assert rates(six, 12) == pytest.approx([1.5, 2.25, 3, 3])  # from the rate in force
    three = begin_stretch(replace(six, examples=340), train, 6, 100)
    assert rates(three, 6) == pytest.approx([1.5, 1.5, 1.5, 1.5])  # 1.95 was in force
    at_once = spec(elastic={"mode": "scale_batch", "ramp_epochs": 0})
    assert factor_in_force(replace(four, examples=300), at_once.following(8), 300, 100) == 2


def test_scaling_rules_and_decay_follow_the_batch() -> None:
    train = spec(scaling={"name": "sqrt", "weight_decay": "sqrt"})
    four = train.following(16)
    assert four.learning_rate(100)(0) == pytest.approx(0.02 * 2)
    assert train.following(4) == train
    kept = spec(scaling="none").following(16)
    assert kept.learning_rate(100)(0) == 0.02


def test_scaled_while_it_waits_a_job_has_the_same_rate_as_one_that_is_scaled_while_it_trains() -> None:
    more = spec().with_workers(4)
    assert (more.workers.num_virtual, more.batch.base, more.most_workers) == (8, 20, 4)
    assert more.learning_rate(100)(0) == spec().following(8).learning_rate(100)(0) == 0.04


def test_new_virtual_workers_begin_with_the_mean_of_the_statistics() -> None:
    buffers = ModuleBuffers(nn.BatchNorm1d(2))
    rows = torch.zeros(2, buffers.width)
    for rank, (mean, seen) in enumerate([([1.0, 4.0], 5), ([3.0, 8.0], 7)]):
        views = buffers.views(rows[rank])
        views["running_mean"].copy_(torch.tensor(mean))
        views["num_batches_tracked"].fill_(seen)
    for num, means, counts in [
        (2, [[1, 4], [3, 8]], [5, 7]),
        (1, [[1, 4]], [5]),
        (3, [[1, 4], [3, 8], [2, 6]], [5, 7, 5]),
    ]:
        found = [buffers.views(row) for row in buffers.fitted(rows, num)]
        assert [views["running_mean"].tolist() for views in found] == means
        assert [int(views["num_batches_tracked"]) for views in found] == counts


def test_they_do_so_from_a_checkpoint_too(tmp_path: Path) -> None:
    setup = set_up(spec(), None)
    rows = {rank: {n: b + rank for n, b in setup.replica.module_buffers.initial.items()} for rank in range(2)}
    model = named_in(setup, setup.replica.initial_params())
    write_checkpoint(tmp_path / "kept", Checkpoint(Position(epoch=1), spec().model_dump(mode="json"), model, {}, rows))
    setup.begin(str(tmp_path / "kept"))
    for name, value in in_common(rows).items():
        assert torch.equal(setup.replica.buffers[3][name], value)
        assert torch.equal(setup.replica.buffers[1][name], rows[1][name])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"algorithm": "downpour"}, "in the form all_reduce"),
        ({"algorithm": {"name": "sync", "form": "parameter_server"}}, "in the form all_reduce"),
        ({"workers": {"count": 2, "virtual": 5}}, "a multiple of workers.count"),
    ],
)
def test_what_cannot_be_is_refused_with_what_would_work(fields: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError) as error:
        spec(**fields)
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == "/elastic"
    assert told in found.message


def test_the_place_of_a_run_survives_being_told() -> None:
    place = begin_stretch(Position(step=3, examples=60, virtual=4), spec(), 8, EXAMPLES)
    assert Position(**asdict(place)) == place
    assert place.first + place.step * 8 == 12
    assert not any(one == other for one, other in pairwise([place, begin_stretch(place, spec(), 4, EXAMPLES)]))
