"""What the README says is there: commands, options, files, links, specs, algorithms, names, defaults."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from api import build
from deploy.main import doors
from deploy.settings import Settings
from service import JobSpec, configurations, load_yaml, read_spec, read_sweep_file
from tests.docs.readme import BLOCKS, ROOT, TEXT, Place, blocks
from trainers.algorithms import CONFIGS
from trainers.data.names import dataset_names
from trainers.events import State
from trainers.models.names import OWN

COMMAND = re.compile(r"(?:^|[(|;&] *)(millrace\b[^|;&)\n]*)", re.MULTILINE)


def millrace_lines() -> Iterator[list[str]]:
    """The words of every `millrace` command in a shell block."""
    for block in BLOCKS:
        if block.language == "bash":
            joined = block.code.replace("\\\n", " ")
            for match in COMMAND.finditer(joined):
                yield shlex.split(match[1])
            for line in joined.splitlines():
                if line.startswith("docker run") and " millrace millrace " in line:
                    yield shlex.split(line[line.index(" millrace millrace ") + len(" millrace ") :])


LINES = list(millrace_lines())


def cli() -> Any:
    return typer.main.get_command(build(doors(Settings())))


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_every_command_and_option_exists(words: list[str]) -> None:
    """Parsed as the command line parses it, to the last word; nothing is run."""
    root = cli()
    name, command, rest = root.resolve_command(click.Context(root), words[1:])
    assert command is not None, f"there is no command {name!r}"
    context = command.make_context(name, rest)
    assert not context.args


def test_the_commands_are_found() -> None:
    assert len(LINES) > 15
    used = {words[1] for words in LINES}
    assert used >= {"run", "serve", "submit", "list", "show", "logs", "cancel"}
    assert all(f"`millrace {name}" in TEXT for name in set(cli().commands) - used)


def test_an_option_that_is_not_there_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        test_every_command_and_option_exists(["millrace", "run", "examples/mnist-sync.yaml", "--fast"])


def read_any(path: Path, sets: list[str]) -> None:
    """A job's spec, or a sweep's with all its configurations."""
    if "axes" in load_yaml(path.read_bytes()):
        assert configurations(read_sweep_file(path, sets))
    else:
        read_spec(path.read_bytes(), sets)


@pytest.mark.parametrize("words", [w for w in LINES if any(x.endswith(".yaml") for x in w)], ids=" ".join)
def test_every_spec_on_a_command_line_reads_well(words: list[str]) -> None:
    (path,) = (word for word in words if word.endswith(".yaml"))
    sets = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    if "epochs=many" in sets:
        sets.remove("epochs=many")
        sets.remove("workers.count=-1")
    assert (ROOT / path).is_file()
    read_any(ROOT / path, sets)


def test_every_spec_that_is_shown_reads_well_and_says_what_its_example_says() -> None:
    shown = {block.section: block.code for block in BLOCKS if block.language == "yaml"}
    demo = read_spec((ROOT / "examples/digits-downpour.yaml").read_bytes())
    assert read_spec(shown.pop("A first job")) == demo.model_copy(update={"name": "first"})
    own = read_spec((ROOT / "examples/own_code/job.yaml").read_bytes()).model_dump()
    part = read_spec(shown.pop("Your own model and dataset"))
    for name in part.model_fields_set - {"name"}:
        assert part.model_dump()[name] == own[name]
    elastic = read_spec(shown.pop("Elastic: workers come and go")).train
    assert (elastic.workers.num_virtual, elastic.most_workers, elastic.elastic.follow_cluster) == (8, 8, True)
    follows = read_spec(shown.pop("A batch that follows the workers")).train
    assert [follows.virtual_for(count) * follows.batch.per_worker for count in (2, 8)] == [128, 512]
    assert not shown


EXAMPLES = [path for path in sorted((ROOT / "examples").rglob("*.yaml")) if "papers" not in path.parts]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_a_spec_that_the_readme_names(path: Path) -> None:
    read_any(path, [])
    assert str(path.relative_to(ROOT)) in TEXT


def test_bad_input_is_told_as_shown(tmp_path: Path) -> None:
    section = "Bad input, and how commands end"
    (code,), (text,) = blocks(section, "bash"), blocks(section, "text")
    assert Place(tmp_path / "copy").shell(code).strip() == text


def table(heading: str) -> list[list[str]]:
    """The cells of the rows of a section's tables, without the header."""
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in section.splitlines() if line.startswith("|")]
    return [row for row in rows if not set("".join(row)) <= set("- ")]


def test_the_table_of_algorithms_is_complete() -> None:
    _, *rows = table("The algorithms")
    text = {name: " ".join(" ".join(row) for row in rows if row[0].startswith(f"`{name}`")) for name in CONFIGS}
    for name, config in CONFIGS.items():
        assert text[name], f"the table has no row for {name}"
        for option in set(config.model_fields) - {"name"}:
            assert f"`{option}`" in text[name], f"the row of {name} does not name {option}"
    assert sum(row[0].startswith(tuple(f"`{name}`" for name in CONFIGS)) for row in rows) == len(rows)


def test_datasets_and_models_by_name_are_those_that_exist() -> None:
    first = [row[0] for row in table("Datasets and models by name")]
    named = {name for cell in first for name in re.findall(r"`(\w+)`", cell)} - {"data", "model"}
    assert named >= {*dataset_names(), *OWN}
    from trainers.models.names import model_names

    assert named <= {*dataset_names(), *model_names()}


def test_every_optimizer_schedule_and_transport_is_named() -> None:
    definitions = JobSpec.model_json_schema()["$defs"]
    names = [
        d["properties"]["name"]["const"] for d in definitions.values() if "const" in d["properties"].get("name", {})
    ]
    assert {"adagrad", "cosine", "downpour"} <= set(names)
    for name in (*names, *JobSpec.model_json_schema()["properties"]["transport"]["enum"]):
        assert f"`{name}`" in TEXT, name


def test_every_setting_is_named_with_its_default() -> None:
    rows = {name: row[1] for row in table("Settings") for name in re.findall(r"`MILLRACE_(\w+)`", row[0])}
    assert set(rows) == {name.upper() for name in Settings.model_fields}
    for name, model_field in Settings.model_fields.items():
        assert str(model_field.default) in rows[name.upper()]


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake (\w[\w-]*)", TEXT)) - {"it"}))
def test_every_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_layout_shows_what_is_there() -> None:
    (tree,) = blocks("Layout", "text")
    above = ROOT
    shown = set()
    for line in tree.splitlines():
        name = line.split()[0]
        above = ROOT if not line.startswith(" ") else above
        assert (above / name).exists(), name
        if not line.startswith(" "):
            above = ROOT / name
            shown.add(name.rstrip("/"))
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert shown == packages | {"docs", "examples"}


def test_links_within_the_repository_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", TEXT, re.M)
    }
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    assert {block.language for block in BLOCKS} == {"bash", "python", "yaml", "text", "mermaid"}
    assert TEXT.count("\n```") == 2 * len(BLOCKS)
    for block in BLOCKS:
        if block.language == "bash":
            subprocess.run(["bash", "-n", "-c", block.code], check=True)


def test_every_state_in_the_readme_is_one() -> None:
    assert set(re.findall(r"--state (\w+)", TEXT)) <= set(State.__members__)
