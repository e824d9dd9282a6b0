"""What README.md and the guide say is there: commands, options, files, specs, algorithms, names, defaults, messages."""

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from pydantic import BaseModel

from api import build
from deploy.main import cli_context
from deploy.settings import Settings
from service import JobSpec, configurations, load_yaml, parse_sweep, read_spec, read_sweep_file
from tests.docs.readme import BLOCKS, PATHS, ROOT, TEXTS, blanked
from trainers.algorithms import CONFIGS
from trainers.data.names import dataset_names
from trainers.events import State
from trainers.models.config import ModelSpec
from trainers.models.names import OWN, model_names
from trainers.spec.improvement import MetricChoice

COMMAND = re.compile(r"(?:^|[(|;&] *)(millrace\b[^|;&)\n]*)", re.MULTILINE)
ALL_TEXT = "\n".join(TEXTS.values())
GUIDE = {page: text for page, text in TEXTS.items() if page != "README"}
BY_LOSS = MetricChoice(metric="loss", mode="min")
NOTES = {"", "before the server", "server", "after the server", "with the server"}


def millrace_lines() -> Iterator[tuple[str, list[str]]]:
    """Page and words of every `millrace` command in a shell block."""
    for page, found in BLOCKS.items():
        for block in found:
            if block.language == "bash":
                joined = block.code.replace("\\\n", " ")
                for match in COMMAND.finditer(joined):
                    yield page, shlex.split(match[1].partition(">")[0])
                for line in joined.splitlines():
                    if line.startswith("docker run") and " millrace millrace " in line:
                        yield page, shlex.split(line[line.index(" millrace millrace ") + len(" millrace ") :])


LINES = list(millrace_lines())


def cli() -> Any:
    return typer.main.get_command(build(cli_context(Settings())))


def parse(root: Any, words: list[str]) -> None:
    """As the command line parses it, to the last word; nothing is run."""
    name, command, rest = root.resolve_command(click.Context(root), words[1:])
    if hasattr(command, "commands"):
        name, command, rest = command.resolve_command(click.Context(command), rest)
    assert not command.make_context(name, rest).args, words


@pytest.mark.parametrize("page", sorted({page for page, _ in LINES}))
def test_every_command_and_option_exists(page: str) -> None:
    root = cli()
    for words in (words for where, words in LINES if where == page):
        parse(root, words)


def test_every_command_is_explained() -> None:
    used = {words[1] for _, words in LINES}
    assert used >= {"run", "serve", "submit", "list", "show", "logs", "cancel"}
    assert all(f"`millrace {name}" in TEXTS["commands"] for name in cli().commands)


def test_an_option_that_is_not_there_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(cli(), ["millrace", "run", "examples/mnist-sync.yaml", "--fast"])


def read_any(path: Path, sets: list[str]) -> None:
    """A job's spec, or a sweep's with all its configurations."""
    if "axes" in load_yaml(path.read_bytes()):
        assert configurations(read_sweep_file(path, sets))
    else:
        read_spec(path.read_bytes(), sets)


SPECS = [w for _, w in LINES if any(x.endswith(".yaml") and not x.startswith("mine/") for x in w)]
"""Commands with a spec that is there, not one that `millrace init` has yet to write."""


@pytest.mark.parametrize("words", SPECS, ids=" ".join)
def test_every_spec_on_a_command_line_reads_well(words: list[str]) -> None:
    (path,) = (word for word in words if word.endswith(".yaml"))
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    if "epochs=many" in sets:
        sets.remove("epochs=many")
        sets.remove("workers.count=-1")
    if path == "mine/job.yaml":  # which millrace init has just written
        return
    assert (ROOT / path).is_file()
    read_any(ROOT / path, sets)


def test_every_spec_that_is_shown_reads_well_and_says_what_its_example_says() -> None:
    shown = {(page, b.section): b.code for page, found in BLOCKS.items() for b in found if b.language == "yaml"}
    demo = read_spec((ROOT / "examples/digits-downpour.yaml").read_bytes())
    for first in (("README", "A first job"), ("specs", "Specs")):
        assert read_spec(shown.pop(first)) == demo.model_copy(update={"name": "first"})
    own = read_spec((ROOT / "examples/own_code/job.yaml").read_bytes()).model_dump()
    part = read_spec(shown.pop(("data-and-models", "Your own model and dataset")))
    for name in part.model_fields_set - {"name"}:
        assert part.model_dump()[name] == own[name]
    told = read_spec(shown.pop(("tasks", "A language model"))).train
    whole = read_spec((ROOT / "examples/shakespeare-gpt.yaml").read_bytes()).train
    assert (told.task, told.model) == (whole.task, whole.model)
    assert told.data == whole.data.model_copy(update={"limit": None})
    masked = read_spec(shown.pop(("tasks", "Models of transformers"))).train
    assert (masked.task.kwargs["head"], masked.model.name) == ("MaskedLM", "hf:bert")
    elastic = read_spec(shown.pop(("elasticity", "Scaling while the job trains"))).train
    assert (elastic.workers.num_virtual, elastic.most_workers, elastic.elastic.follow_cluster) == (8, 8, True)
    follows = read_spec(shown.pop(("elasticity", "A batch that follows the workers"))).train
    assert [follows.virtual_for(count) * follows.batch.per_worker for count in (2, 8)] == [128, 512]
    groups = read_spec(shown.pop(("recipe", "Parameter groups"))).train.optimizer.groups
    assert [(group.patterns, group.lr) for group in groups] == [(("*.bias",), 0.08), (("fc*", "classifier.*"), 0.01)]
    stops = read_spec(shown.pop(("checkpoints", "The best model, and when to stop"))).train
    assert (stops.early_stop and stops.early_stop.min_delta, stops.checkpoint.keep_best) == (0.001, BY_LOSS)
    begins = read_spec(shown.pop(("checkpoints", "Start from given weights"))).train.model
    assert (begins.key_mapping, begins.strict) == ({r"^net\.": ""}, True)
    nadam = read_spec(shown.pop(("recipe", "Whole parameters"))).train.optimizer
    assert nadam.build().kwargs == {"momentum_decay": 0.004}
    watched = read_spec(shown.pop(("callbacks", "Callbacks"))).train.callbacks
    assert watched == read_spec((ROOT / "examples/callbacks/job.yaml").read_bytes()).train.callbacks
    clipped = read_spec(shown.pop(("recipe", "Clipped gradients"))).train
    assert clipped.clip is not None
    assert clipped.clip.norm == 1.0
    varied = read_spec(shown.pop(("data-and-models", "Images, varied and mixed"))).train.data
    assert varied.varied_by == ("rand_augment", "random_erasing", "mixup", "cutmix")
    averaged = read_spec(shown.pop(("recipe", "An average of the parameters"))).train
    assert averaged.ema is not None
    assert averaged.ema.decay == 0.99
    assert read_spec(shown.pop(("precision", "Precision and compilation"))).train.precision == "bfloat16"
    assert read_spec(shown.pop(("precision", "What travels"))).train.wire == "bfloat16"
    columns = read_spec(shown.pop(("algorithms/hybrid", "Columns"))).train
    assert (columns.algorithm.model_dump()["columns"], columns.workers.num_virtual) == (2, 2)
    sparse = read_spec(shown.pop(("compression", "Compressed gradients"))).train.compress
    assert sparse is not None
    assert sparse.top_k == 0.01
    again = read_spec(shown.pop(("precision", "Activations that are computed again"))).train
    assert again.model.checkpoint_activations is True
    assert read_spec(shown.pop(("precision", "Compiled models"))).train.model.compile
    course = read_spec(shown.pop(("schedules", "The learning rate over a run"))).train
    assert (course.warmup.steps, course.schedule.name) == (100, "wsd")
    told = read_spec(shown.pop(("records", "A table"))).train
    whole = read_spec((ROOT / "examples/tables/flats.yaml").read_bytes()).train
    assert (told.task, told.model.name) == (whole.task, whole.model.name)
    assert told.data.model_copy(update={"columns": ()}) == whole.data
    swept = parse_sweep(load_yaml(shown.pop(("sweeps", "Ranges and conditions"))))
    assert (len(configurations(swept)), swept.varies_batch) == (1, False)
    groups = read_spec(shown.pop(("algorithms/mixed", "Two levels"))).train
    assert groups.algorithm.traits.num_pushers(groups.workers.count) == 2
    region = read_spec(shown.pop(("algorithms/mixed", "A region that is cut off"))).train
    assert region.algorithm.traits.apart_s == 600
    assert not shown


EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*.yaml")) if "papers" not in path.parts]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_spec_that_a_page_names(path: Path) -> None:
    read_any(path, [])
    assert str(path.relative_to(ROOT)) in ALL_TEXT


def section(page: str, heading: str) -> str:
    """The text under a heading, to the next one of its level or above."""
    level = heading.partition(" ")[0]
    _, _, after = f"\n{TEXTS[page]}".partition(f"\n{heading}\n")
    assert after, f"{page} has no {heading!r}"
    return re.split(rf"^#{{1,{len(level)}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def table(page: str, heading: str) -> list[list[str]]:
    """The cells of the rows of a section's tables, without the header."""
    rows = [re.split(r" *\| *", line.strip("| ")) for line in section(page, heading).splitlines() if line[:1] == "|"]
    return [row for row in rows if not set("".join(row)) <= set("- :")][1:]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_algorithm_has_a_page_with_all_its_options(name: str) -> None:
    text = TEXTS[f"algorithms/{name}"]
    fields = set(CONFIGS[name].model_fields) - {"name"}
    assert all(f"`{option}`" in text or f"`{option}:" in text for option in fields), fields
    for heading in ("What it computes", "When to choose it", "What the tests hold it equal to", "Options"):
        assert f"\n## {heading}\n" in text
    assert re.search(r"^## Sources?$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "heading"), [("README", "## The algorithms"), ("algorithms/index", "# The algorithms")]
)
def test_the_tables_of_algorithms_are_complete(page: str, heading: str) -> None:
    assert [re.sub(r"\W*(\w+)`.*", r"\1", row[0]) for row in table(page, heading)] == [
        "sync", "downpour", "mixed", "hybrid", "spatial", "parallel_sgd", "diloco", "easgd", "admm"
    ]  # fmt: skip
    assert len(CONFIGS) == 9


def test_datasets_and_models_by_name_are_those_that_exist() -> None:
    rows = [*table("data-and-models", "## Datasets by name"), *table("data-and-models", "## Models by name")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert {*dataset_names(), *OWN} <= named <= {*dataset_names(), *model_names(), "task"}


def test_every_optimizer_schedule_and_transport_is_named() -> None:
    schema = JobSpec.model_json_schema()
    names = [
        d["properties"]["name"]["const"] for d in schema["$defs"].values() if "const" in d["properties"].get("name", {})
    ]
    assert {"adagrad", "cosine", "downpour"} <= set(names)
    assert all(f"`{name}`" in TEXTS["specs"] + TEXTS["algorithms/index"] for name in names)
    assert {row[0].split("`")[1] for row in table("transports", "# Transports")} == set(
        schema["properties"]["transport"]["enum"]
    )


def test_every_field_of_a_spec_is_explained() -> None:
    for name, spec_field in JobSpec.model_fields.items():
        assert f"`{name}`" in TEXTS["specs"], name
        kind = ModelSpec if name == "model" else type(spec_field.default)
        if issubclass(kind, BaseModel) and name not in ("algorithm", "optimizer", "schedule", "scaling", "warmup"):
            found = re.search(rf"^### `{name}`.*?(?=^##|\Z)", TEXTS["specs"], re.MULTILINE | re.DOTALL)
            assert found, name
            assert all(f"`{inner}`" in found[0] for inner in kind.model_fields), (name, set(kind.model_fields))


def test_every_setting_is_named_with_its_default() -> None:
    rows = {
        name: row[1] for row in table("commands", "## Settings") for name in re.findall(r"`MILLRACE_(\w+)`", row[0])
    }
    assert set(rows) == {name.upper() for name in Settings.model_fields}
    for name, model_field in Settings.model_fields.items():
        assert str(model_field.default) in rows[name.upper()]


def test_the_settings_that_pages_name_are_there() -> None:
    for name in re.findall(r"MILLRACE_([A-Z_]+)\b", ALL_TEXT):
        assert name.lower() in {*Settings.model_fields, "config"}, name


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make (\w[\w-]*)`|^make (\w[\w-]*)$", ALL_TEXT, re.M))))
def test_every_make_target_exists(target: tuple[str, str]) -> None:
    assert re.search(rf"^{target[0] or target[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_tree_in_the_readme_is_what_is_there() -> None:
    (tree,) = (block.code for block in BLOCKS["README"] if block.section == "The tree")
    shown = {line.split()[0].rstrip("/") for line in tree.splitlines()}
    assert shown == {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"docs", "examples"}


@pytest.mark.parametrize("page", TEXTS)
def test_every_block_is_run_or_says_why_not(page: str) -> None:
    assert {block.language for block in BLOCKS[page]} <= {"bash", "python", "yaml", "text", "mermaid"}
    assert TEXTS[page].count("\n```") == 2 * len(BLOCKS[page])
    for block in BLOCKS[page]:
        assert block.note in NOTES if block.is_run else block.note.removeprefix("not run: ")
        if block.language == "bash":
            subprocess.run(["bash", "-n", "-c", block.code], check=True)


def test_what_is_shown_of_a_file_is_in_it() -> None:
    shown = [block for found in BLOCKS.values() for block in found if block.note.startswith("as in ")]
    assert shown
    for block in shown:
        assert f"{block.code}\n" in (ROOT / block.note.removeprefix("as in ")).read_text()


def test_every_state_that_a_command_asks_for_is_one() -> None:
    assert {name.upper() for name in re.findall(r"--state (\w+)", ALL_TEXT)} <= set(State.__members__)


def prose(text: str) -> list[str]:
    """The lines that are neither code nor a table, nor made long by an address."""
    lines = map(str.rstrip, blanked(text).splitlines())
    return [line for line in lines if not line.startswith("|") and "](http" not in line]


def test_the_readme_is_read_in_one_go() -> None:
    lines = TEXTS["README"].splitlines()
    assert len(lines) <= 250
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("page", GUIDE)
def test_a_page_of_the_guide_is_short_and_its_lines_too(page: str) -> None:
    assert len(TEXTS[page].splitlines()) <= 300
    assert not [line for line in prose(TEXTS[page]) if len(line) > 120]
    assert len(re.findall(r"^# ", blanked(TEXTS[page]), re.MULTILINE)) == 1


def literals() -> str:
    """Every text in the source, a line each; a space stands for what is filled in."""
    found = []
    for package in ("trainers", "service", "api", "deploy"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [str(p.value) if isinstance(p, ast.Constant) else "\0" for p in node.values]
                    found.append("".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_the_messages_in_troubleshooting_are_those_of_the_program() -> None:
    """But for what stands as `...`, or as a capital letter in place of a number."""
    texts = literals()
    messages = re.findall(r"\*\*`([^`]+)`", TEXTS["troubleshooting"])
    assert len(messages) > 40
    for message in messages:
        for part in re.split(r"\.\.\.|\b[NMK]\b", message):
            words = part.strip(" ;:'")
            assert len(words) < 6 or words in texts, message


def test_papers_readme_is_linked() -> None:
    assert PATHS["papers"].parent.joinpath("../examples/papers/README.md").resolve().is_file()
