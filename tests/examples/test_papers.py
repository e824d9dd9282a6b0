"""The papers' experiments are specs: every one reads well, says what its paper says, and has a twin in proportion."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from service import explain, known_examples, read_spec_file
from tests.examples.papers import FOLDER, PAIRS, Pair, of_paper
from trainers.data.datasets import open_dataset

README = (FOLDER / "README.md").read_text()
COMMANDS = [shlex.split(line) for line in re.findall(r"^millrace .*$", README, re.MULTILINE)]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_both_read_well_and_have_the_same_algorithm_recipe_and_proportions(pair: Pair) -> None:
    spec, twin = pair.spec, pair.twin
    assert (spec.name, twin.name) == (f"paper{pair.paper}-{pair.path.stem}", f"{spec.name}-small")
    assert twin.data.name in ("mnist", "fashion_mnist")
    ours, theirs = (each.algorithm.model_dump(exclude={"group"}) for each in (spec, twin))
    assert ours == theirs
    assert (twin.scaling, twin.warmup.name) == (spec.scaling, spec.warmup.name)
    assert (twin.schedule.name, twin.optimizer.name) == (spec.schedule.name, spec.optimizer.name)
    assert twin.batch_scaling.batch_factor == spec.batch_scaling.batch_factor
    assert twin.workers.gpus == 0
    assert twin.workers.count * twin.workers.cpus <= 4


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_comment_says_what_is_reported_and_what_was_chosen(pair: Pair) -> None:
    head = re.match(r"(# .*\n)+", pair.path.read_text())
    assert head is not None
    told = head[0].replace("\n# ", " ")
    assert re.match(rf"# Paper {pair.paper} \(.*\), (section|tables?) ", told)
    assert "Reported: " in told
    assert "Not said: " in told
    assert f"# Small twin of ../{pair.path.name}: " in pair.twin_path.read_text()


def test_every_twin_belongs_to_an_experiment_and_the_page_names_all() -> None:
    twins = set(FOLDER.glob("*/small/*.yaml"))
    assert twins - {pair.twin_path for pair in PAIRS} == {FOLDER / "3-gpu-cluster/small/pretrain.yaml"}
    linked = set(re.findall(r"\]\((\S+\.yaml)\)", README))
    assert linked == {str(pair.path.relative_to(FOLDER)) for pair in PAIRS}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_of_the_page_reads_a_spec(words: list[str]) -> None:
    (name,) = (word for word in words if word.endswith(".yaml"))
    path = FOLDER.parents[1] / name if "/" in name else FOLDER / "4-large-minibatch" / name
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    changed = read_spec_file(path, sets)
    assert not sets or changed != read_spec_file(path)


@pytest.mark.parametrize("pair", of_paper(1), ids=lambda pair: pair.name)
def test_paper_1s_batches(pair: Pair) -> None:
    """(m, n) of table 1: m in the convolutions, n in the fully connected layers."""
    spec = pair.spec
    match = re.search(r"batch \((\d+), (\d+)\)", pair.path.read_text())
    assert match is not None
    m, n = (int(number) for number in match.groups())
    per_turn = spec.algorithm.model_dump().get("fc_batch") == "per_turn"
    assert spec.global_batch == m
    assert n == (spec.batch.per_worker if per_turn else m)
    assert f"| {spec.workers.count} | ({m}, {n}) |" in README
    assert spec.batch_scaling.learning_rate == pytest.approx(0.01 * m / 128)
    assert pair.twin.global_batch * 8 == m
    assert spec.epochs == 90
    recipe = explain(spec.train, 1_281_167)
    assert [round(phase.epoch, 1) for phase in recipe.phases] == [0, 22.5, 45, 67.5, 90]


def test_paper_2s_photographs_are_grey_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for half, count in (("train", 3), ("val", 1)):
        for label, name in enumerate(("apple", "pear")):
            (tmp_path / half / name).mkdir(parents=True)
            for index in range(count):
                colour = (250 * label, 250 * label, 250 * label)
                Image.new("RGB", (300, 250), colour).save(tmp_path / half / name / f"{index}.png")
    (spec, *others) = (pair.spec.resolved(FOLDER.parents[1]) for pair in of_paper(2))
    assert spec.code is not None
    assert all((other.code, other.data) == (spec.code, spec.data) for other in others)
    monkeypatch.syspath_prepend(spec.code)
    with open_dataset(spec.data.model_copy(update={"root": str(tmp_path)}), 0) as data:
        assert (data.num_train, data.num_test, data.facts.classes, data.facts.inputs) == (6, 2, 2, (1, 224, 224))
        (batch,) = data.test_batches(2)
    assert batch.labels.tolist() == [0, 1]
    assert batch.images[0].mean() < batch.images[1].mean()


@pytest.mark.parametrize("pair", of_paper(3), ids=lambda pair: pair.name)
def test_paper_3s_nodes_and_servers(pair: Pair) -> None:
    spec, twin = pair.spec, pair.twin
    nodes = int(pair.path.stem.rpartition("-")[2])
    assert spec.workers.count == 4 * nodes
    assert (spec.batch.per_worker, twin.batch.per_worker) == (32, 8)
    assert spec.optimizer == twin.optimizer
    if spec.algorithm.traits.uses_parameter_server:
        assert spec.ps.shards == {2: 1, 4: 3, 8: 7, 16: 7}[nodes]
        assert f"| {nodes} | {spec.ps.shards} |" in README
        assert twin.ps.shards in (spec.ps.shards, spec.ps.shards // 2)
        assert spec.ps.placement == "round_robin"


@pytest.mark.parametrize("pair", of_paper(4), ids=lambda pair: pair.name)
def test_paper_4s_minibatches_and_rates(pair: Pair) -> None:
    """kn and the reference rate 0.1 kn/256 (not after warm-up alone: section 5.1), the same for the twin."""
    spec, size = pair.spec, pair.path.stem.partition("-")[2]
    kn = int(size.replace("k", "")) * (1024 if size.endswith("k") else 1)
    assert spec.update_batch == kn == 32 * spec.workers.num_virtual
    assert spec.batch_scaling.learning_rate == pytest.approx(0.1 * kn / 256)
    assert pair.twin.batch_scaling.learning_rate == pytest.approx(0.1 * pair.twin.update_batch / 256)
    assert spec.workers.count == (spec.workers.num_virtual if kn < 12 * 1024 else 8)
    assert f"| {spec.workers.num_virtual} | {kn} | {0.1 * kn / 256:g} |" in README
    examples = known_examples(spec.data)
    assert examples is not None
    phases = {phase.name: (round(phase.epoch), phase.learning_rate) for phase in explain(spec.train, examples).phases}
    assert [phases[f"drop {count}"][0] for count in (1, 2, 3)] == [30, 60, 80]
    assert phases["start"][1] == pytest.approx(0.1)
    assert spec.model.zero_gamma
    assert spec.model.init == "he"
