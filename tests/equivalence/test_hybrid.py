"""`hybrid` equals serial SGD on the whole batch in every scheme, and is what the paper says where it does not."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.contracts.groups import Groups, rendezvous_for
from tests.equivalence.harness import (
    RECIPES,
    Run,
    run_all_reduce,
    run_through_shards,
    serial,
    step_batches,
    written_loss,
)
from trainers.algorithms.base import Start, Work
from trainers.checkpoint import Checkpoint, Position, write_checkpoint
from trainers.data.batches import Batch
from trainers.errors import SpecRejected
from trainers.feed import synchronous
from trainers.head import Passing
from trainers.losses import loss_of_shard
from trainers.models.dropout import replace_dropout
from trainers.models.registry import build_model
from trainers.optim.schedules import build_schedule
from trainers.optim.update import Buffers
from trainers.setup import check, set_up
from trainers.spec import TrainSpec, field_errors
from trainers.transport.canonical import block
from trainers.transport.local import LocalWorld, local_collectives
from trainers.transport.protocols import Collectives, Handle
from trainers.turns import take_turns

SCHEMES = ("a", "b", "c", "bc")


class Net(nn.Module):
    """Batch norm in the trunk, dropout in the trunk and in the head, layers of 33 and 17 units."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten()
        )
        self.head = nn.Sequential(
            nn.Linear(64, 33),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(33, 17),
            nn.Tanh(),
            nn.Dropout(0.3),
            nn.Linear(17, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


def net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def spec(virtual: int, count: int, algorithm: dict[str, object] | None = None, **more: object) -> TrainSpec:
    """24 steps of 5 virtual workers with 7 examples each; the last step of an epoch has 28 examples for all of them."""
    fields = {
        "algorithm": {"name": "hybrid"} | (algorithm or {}),
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
        "data": {"name": "digits", "limit": 203, "random_crop": 1, "horizontal_flip": True},
        "batch": 7,
        "epochs": 4,
        "seed": 3,
    }
    return TrainSpec.model_validate(fields | more)


@cache
def serial_params(virtual: int, loss: str) -> Tensor:
    run = Run(spec(virtual, 1, loss=loss), net)
    return serial(run, step_batches(run), "mean")


def distance(found: Tensor, expected: Tensor) -> float:
    """Relative."""
    return float((found - expected).norm() / expected.norm())


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
    """One whose trunk has nothing to train, and one of five layers."""
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
        alone, shared = (sum(report.loss for report in each) for each in reports)
        assert alone == pytest.approx(shared, rel=1e-5)
        assert sum(report.examples for report in reports[1]) == 203


@pytest.mark.parametrize("kind", ["shared_memory", "process_group", "composed"])
def test_workers_that_move_at_the_same_time_have_the_bits_of_those_that_take_turns(tmp_path: Path, kind: str) -> None:
    """Overlapping exchanges on the real transports, more turns than boxes."""
    run = Run(spec(5, 2, {"scheme": "c", "split": "outputs"}, epochs=1), net)
    contexts = [run.context() for _ in range(2)]  # made here, since threads share torch's generator
    works = [list(synchronous(run.dataset, run.order, run.ranks(rank, 2), 1)) for rank in range(2)]

    def body(collectives: Collectives) -> Tensor:
        algorithm = run.spec.algorithm.build(replace(contexts[collectives.rank], collectives=collectives))
        for work in works[collectives.rank]:
            algorithm.step(work)
        return algorithm.whole().params

    with rendezvous_for(kind) as rendezvous:
        found, _ = Groups(kind, tmp_path, rendezvous).run(2, body)
    assert torch.equal(found, run_all_reduce(run).params)


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
        found = [vectors(algorithm.newest())]
        for work in works[collectives.rank]:
            algorithm.step(work)
            gathered = vectors(algorithm.whole())
            for one, other in zip([found[-1], gathered], [algorithm.newest(1), algorithm.newest()], strict=True):
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
    assert elsewhere.whole is not None
    assert all(map(torch.equal, first[-1], vectors(elsewhere.whole)))


def vectors(version: Buffers) -> list[Tensor]:
    return [version.params, *version.state.values()]


# -- turns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(7, 7, 7, 7, 7), (7, 7, 3, 0, 0), (1, 0, 0, 0, 0), (2,)])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_example_has_exactly_one_turn(scheme: str, sizes: tuple[int, ...]) -> None:
    turns = take_turns(scheme, 2, sizes)
    taken = [(piece.rank, example) for turn in turns for piece in turn for example in range(piece.first, piece.stop)]
    assert sorted(taken) == [(rank, example) for rank, size in enumerate(sizes) for example in range(size)]
    assert all(sum(piece.size for piece in turn) for turn in turns)


def test_who_takes_part_in_a_turn() -> None:
    def shared(scheme: str, group: int = 2) -> list[list[tuple[int, int]]]:
        return [[(p.rank, p.size) for p in turn] for turn in take_turns(scheme, group, (6, 6, 6, 6))]

    assert shared("a") == [[(0, 6), (1, 6), (2, 6), (3, 6)]]
    assert shared("b") == shared("bc", 1) == [[(0, 6)], [(1, 6)], [(2, 6)], [(3, 6)]]
    assert [[size for _, size in turn] for turn in shared("c")] == [[1, 1, 1, 1], [2] * 4, [1] * 4, [2] * 4]
    assert shared("bc", 4) == shared("c")
    assert shared("bc") == [[(0, 3), (1, 3)], [(0, 3), (1, 3)], [(2, 3), (3, 3)], [(2, 3), (3, 3)]]


def test_the_exchange_of_the_next_turn_is_begun_before_the_passes_of_this_one() -> None:
    run = Run(spec(3, 1, {"scheme": "b"}, epochs=1), net)
    (collectives,) = local_collectives(LocalWorld(0), 1)
    algorithm = run.spec.algorithm.build(run.context(collectives=collectives))
    told: list[str] = []
    exchange = collectives.all_to_all

    def begun(send: list[Tensor], receive: list[Tensor]) -> Handle[None]:
        told.append("exchange")
        return exchange(send, receive)

    def passed(passing: Passing) -> tuple[Tensor, Tensor]:
        told.append("pass")
        return torch.zeros_like(passing.activities), torch.zeros(())

    collectives.all_to_all, algorithm.head.train = begun, passed
    algorithm.step(next(iter(synchronous(run.dataset, run.order, range(3), 1))))
    labels, first, second, third, given_back = ["exchange"] * 5
    assert told[:11] == [
        labels, first, second, "pass", given_back, third, "pass", given_back, "pass", given_back, "exchange",
    ]  # fmt: skip


# -- variable batch (section 4.2) ---------------------------------------------------------------------------------


def variable_batch(run: Run, steps: Iterator[list[Batch]], scheme: str) -> Tensor:
    """Plain PyTorch on one process: the fully connected layers are updated after every turn, the trunk after all."""
    model = run.net(run.spec.seed)
    draws, schedule = replace_dropout(model, run.spec.seed), build_schedule(run.spec, run.dataset.num_train)
    o = run.spec.optimizer
    options = {"lr": o.lr, "momentum": o.momentum, "weight_decay": o.weight_decay, "foreach": False}
    conv, norm = model.trunk[0], model.trunk[1]
    groups = [{"params": list(conv.parameters())}, {"params": list(norm.parameters()), "weight_decay": 0.0}]
    trunk, head = torch.optim.SGD(groups, **options), torch.optim.SGD(model.head.parameters(), **options)
    seen, num_virtual = 0, run.spec.workers.num_virtual
    for step in steps:
        examples, activities = sum(len(batch) for batch in step), []
        for batch in step:
            draws.set(batch.epoch, batch.examples)
            activities.append(model.trunk(batch.images))
        for t in range(len(step) if scheme == "b" else num_virtual):
            if scheme == "b":
                cuts = [(batch, slice(0, len(batch) if i == t else 0)) for i, batch in enumerate(step)]
            else:
                cuts = [(batch, slice(*block(len(batch), t, num_virtual))) for batch in step]
            labels = torch.cat([batch.labels[cut] for batch, cut in cuts])
            ids = torch.cat([torch.from_numpy(batch.examples)[cut] for batch, cut in cuts]).numpy()
            if len(ids) == 0:
                continue
            draws.set(step[0].epoch, ids)
            logits = model.head(torch.cat([a[cut] for a, (_, cut) in zip(activities, cuts, strict=True)]))
            written_loss(run.spec, logits, labels).backward(retain_graph=True)
            _step(head, schedule(seen) * len(labels) / examples, len(labels))
        _step(trunk, schedule(seen), examples)
        seen += examples
    return run.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


def _step(optimizer: torch.optim.Optimizer, lr: float, examples: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
        for parameter in group["params"]:
            parameter.grad /= examples
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("scheme", ["b", "c"])
def test_variable_batch_is_the_serial_program_written_out(scheme: str) -> None:
    fields = {"schedule": "krizhevsky", "optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.01}}
    for count in (1, 2, 3):
        run = Run(spec(3, count, {"scheme": scheme, "fc_batch": "per_turn"}, **fields | {"epochs": 2}), net)
        found = run_all_reduce(run).params
        assert distance(found, variable_batch(run, step_batches(run), scheme)) < 1e-5
    assert distance(found, serial(run, step_batches(run), "mean")) > 1e-4  # it is no synchronous SGD


def test_the_turns_of_a_step_move_the_weights_as_far_as_one_update() -> None:
    """To the first order in the learning rate, weight decay included: the choice that the config documents."""
    small = {"name": "sgd", "lr": 0.001, "weight_decay": 0.1}
    start = Run(spec(5, 1), net).start().whole.params
    moved = {}
    for fc_batch in ("whole", "per_turn"):
        run = Run(spec(5, 1, {"scheme": "c", "fc_batch": fc_batch}, optimizer=small, epochs=1), net)
        moved[fc_batch] = run_all_reduce(run).params - start
    assert 0 < distance(moved["per_turn"], moved["whole"]) < 0.01


def test_variable_batch_taken_up_again_goes_on_as_if_undisturbed() -> None:
    """Equation 10 keeps the rate in its state: of a turn while it trains, of a step in what it hands on."""
    recipe = RECIPES["linear, gradual, equation 10"] | {"epochs": 2}
    run = Run(spec(3, 1, {"scheme": "b", "fc_batch": "per_turn"}, **recipe), net)
    works = list(synchronous(run.dataset, run.order, run.ranks(0, 1), run.spec.epochs))
    context, cut = run.context(), len(works) // 2

    def train(start: Start, works: list[Work]) -> Start:
        world = LocalWorld(0)
        (collectives,) = local_collectives(world, 1)

        def worker() -> Start:
            context.replica.point_to(run.layout.named(start.whole.params.clone()))
            algorithm = run.spec.algorithm.build(replace(context, start=start, collectives=collectives))
            reports = [algorithm.step(work) for work in works]
            examples = start.examples + sum(report.examples for report in reports)
            return Start(algorithm.whole(), examples, reports[-1].learning_rate)

        (end,) = world.run([worker])
        return end

    buffers = {name: value.clone() for name, value in context.replica.float_buffers(0).items()}
    middle = train(context.start, works[:cut])
    found = train(middle, works[cut:])
    assert buffers
    assert distance(found.whole.params, run_all_reduce(run).params) < 1e-6
    wrong = Buffers(middle.whole.params, {name: state / 3 for name, state in middle.whole.state.items()})
    assert distance(train(replace(middle, whole=wrong), works[cut:]).whole.params, found.whole.params) > 1e-4


# -- checkpoints --------------------------------------------------------------------------------------------------


def trained(train: TrainSpec, folder: Path) -> tuple[Tensor, Path]:
    """Train on the local transport from what the spec resumes from; the parameters and a checkpoint of the end."""
    setup = set_up(train, None)
    start, position = setup.begin()
    run = Run(train, lambda seed: build_model(train.model, 10, (1, 8, 8), seed))
    run.start = lambda: start
    left = train.epochs - position.epoch
    run.spec = train.model_copy(update={"epochs": left})
    asynchronous = train.algorithm.uses_parameter_server
    outcome = run_through_shards(run) if asynchronous else run_all_reduce(run)
    params = outcome.params[: setup.layout.numel]
    state = outcome.whole.state if outcome.whole else start.whole.state
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
    assert torch.equal(start.whole.params, second)
    if not asynchronous:
        expected, _ = trained(spec(3, 2, **fields), tmp_path / "stayed")
        assert distance(second, expected) < 1e-5


def test_the_state_of_the_rule_is_whole_too() -> None:
    found = run_all_reduce(Run(spec(5, 3), net)).whole
    expected = run_all_reduce(Run(spec(5, 3, {"name": "sync"}), net)).whole
    assert found is not None
    assert expected is not None
    assert distance(found.state["momentum"], expected.state["momentum"]) < 1e-4
    assert distance(found.params, expected.params) < 1e-5


# -- bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("scheme", ["a", "bc"])
@pytest.mark.parametrize(
    ("split", "widths", "between"),
    [("outputs", (32, 16, 16), 2 * (32 + 16)), ("pairs", (32, 16, 16), 4 * 16), ("pairs", (32, 16), 2 * 16)],
)
def test_the_bytes_of_a_step(scheme: str, count: int, split: str, widths: tuple[int, ...], between: int) -> None:
    """Of all K workers together, for kn examples, F = 64 activities and T weights in the trunk. Activities go from
    their owner to the K - 1 others, and their gradients come back from them: 2 (K - 1) F kn. Between the layers:
    (K - 1) h kn. The trunk: 2 (K - 1) T (paper 4, section 4.1). Labels and ids: 4 (K - 1) kn. Where the last layer is
    divided by outputs, maxima, sums and targets from each of K: 3 K (K - 1) kn."""
    n, k = 8, count

    def even(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            trunk = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten())
            return nn.Sequential(trunk, *(nn.Linear(a, b) for a, b in itertools.pairwise((64, *widths))))

    fields = {"batch": n, "data": {"name": "digits", "limit": 4 * n}}
    one, two = (
        run_all_reduce(Run(spec(4, count, {"scheme": scheme, "split": split}, epochs=steps, **fields), even)).traffic
        for steps in (1, 2)
    )
    kn, trunk, divided = 4 * n, 64, len(widths) == 3  # the trunk's 40 weights, padded
    floats = (k - 1) * (2 * 64 * kn + between * kn + 2 * trunk + 4 * kn + (3 * k * kn if divided else 0))
    assert two.sent_bytes - one.sent_bytes == two.received_bytes - one.received_bytes == 4 * floats


# -- losses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic"])
def test_a_loss_from_shards_is_the_loss(loss: str) -> None:
    """With logits too large for a softmax without the maximum of all shards."""
    torch.manual_seed(0)
    logits, labels = (100 * torch.randn(6, 10)).requires_grad_(), torch.tensor([0, 3, 4, 9, 5, 5])
    cuts = [slice(0, 4), slice(4, 5), slice(5, 10)]
    expected = written_loss(spec(1, 1, loss=loss), logits, labels)
    (gradient,) = torch.autograd.grad(expected, logits)
    figures = []

    def first(told: Tensor) -> Tensor:
        figures.append(told)
        return told[None]

    for cut in cuts:
        loss_of_shard(loss, logits.detach()[:, cut], labels, cut.start, first)
    assert len(figures) == (3 if loss == "cross_entropy" else 0)  # no normalisation, no exchange
    parts = [
        loss_of_shard(loss, logits.detach()[:, cut], labels, cut.start, lambda _: torch.stack(figures)) for cut in cuts
    ]
    torch.testing.assert_close(torch.cat([part for _, part in parts], 1), gradient, rtol=1e-5, atol=1e-6)
    found = parts[0][0] if loss == "cross_entropy" else sum(losses for losses, _ in parts)
    torch.testing.assert_close(found.sum(), expected.detach(), rtol=1e-5, atol=1e-5)


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "pointer", "told"),
    [
        ({"scheme": "a", "fc_batch": "per_turn"}, "/algorithm/fc_batch", "set scheme to b, c or bc"),
        ({"scheme": "b", "group": 2}, "/algorithm/group", "only scheme bc has groups"),
        ({"scheme": "d"}, "/algorithm/scheme", "'a', 'b', 'c' or 'bc'"),
    ],
)
def test_what_the_spec_shows_to_be_wrong(algorithm: dict[str, object], pointer: str, told: str) -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        spec(2, 2, algorithm)
    (error,) = field_errors(caught.value)
    assert error.pointer == pointer
    assert told in error.message


def test_what_the_model_shows_to_be_wrong_is_found_by_the_preflight() -> None:
    with pytest.raises(SpecRejected, match=r"^model.name: .*ends? .*"):
        check(set_up(spec(2, 2, model="squeezenet1_1", data={"name": "digits", "random_resized_crop": 64}), None))
    with pytest.raises(SpecRejected, match=r"^workers.count: 11 workers cannot share the 10 outputs"):
        check(set_up(spec(11, 11, {"split": "outputs"}, model="lenet5"), None))
