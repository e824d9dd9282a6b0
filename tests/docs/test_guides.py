"""docs/operations.md and docs/api.md: every command in them is run, in order, on a server of their own."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from deploy.settings import Settings
from tests.docs.readme import ROOT, Block, Place, read, server
from tests.docs.test_readme import COMMAND, cli

GUIDES = {name: ROOT / "docs" / f"{name}.md" for name in ("operations", "api", "guarantees")}
RUN = {"operations": {"", "before the server", "server", "after the server"}, "api": {""}, "guarantees": {""}}


def blocks(guide: str, language: str, note: str = "") -> list[Block]:
    """Those of a guide's blocks that are run."""
    return [block for block in read(GUIDES[guide].read_text()) if (block.language, block.note) == (language, note)]


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_every_command_of_the_guides(tmp_path: Path) -> None:
    place = Place(tmp_path / "copy")
    (command,), (after,) = (blocks("operations", "bash", note) for note in ("server", "after the server"))
    told = place.shell("\n".join(block.code for block in blocks("operations", "bash", "before the server")))
    assert "refusing to listen on 0.0.0.0 without a token" in told
    assert "exit status 2" in told
    with server(place, command.code, after.code):
        told = place.shell("\n".join(block.code for block in blocks("operations", "bash")), within_s=150)
        assert '{"status":"ok"}{"status":"ok"}{"user":"wall","role":"viewer"}' in told
        assert '"status":401' in told
        assert re.search(r"^SUCCEEDED: 3 epochs", told, re.MULTILINE)
        assert "takes you for ann, user" in told
        assert "no, revoked" in told
        assert "takes what is written and gives it back" in told
        assert re.search(r"copy +(is being copied|copied) to", told)
        assert (place.folder / "backup.db").stat().st_size > 0
        told = place.shell("\n".join(block.code for block in blocks("api", "bash")), within_s=120)
        assert '{"user":"root","role":"admin"}' in told
        assert '"pointer":"/epochs"' in told
        made = re.findall(r"location: (/v1/jobs/\S+)", told, re.IGNORECASE)
        assert (len(made), len(set(made))) == (2, 1)
        assert '"state":"PAUSING"' in told
        assert '"name":"careful"' in told
        assert '"name":"loss","x":"epoch"' in told
        assert "no figure is called 'lost'" in told
        assert (place.folder / "model.safetensors").stat().st_size > 0
        assert "idempotent-replayed: true" in told.lower()
        assert "169.254.169.254, which is not an address of the public network" in told
        secrets = [json.loads(line)["secret"] for line in re.findall(r'\{"id".*?"secret":"[^"]+"\}', told)]
        assert len(secrets) == 1
        told = place.python("\n".join(block.code for block in blocks("api", "python")), within_s=60)
        assert told.startswith("not from us")
        assert "the job needs 99 CPUs" in told
        assert "SUCCEEDED" in told


def test_the_tests_that_show_the_guarantees_are_there() -> None:
    """They are run with all the others; here it counts that the commands find them."""
    commands = [shlex.split(block.code) for block in blocks("guarantees", "bash")]
    assert all(words[:4] == ["python", "-m", "pytest", "-q"] for words in commands)
    program = "import json, sys, pytest; sys.exit(any([pytest.main(words) for words in json.loads(sys.argv[1])]))"
    arguments = json.dumps([[*words[3:], "--collect-only"] for words in commands])
    collected = subprocess.run([sys.executable, "-c", program, arguments], cwd=ROOT, capture_output=True, check=False)
    assert collected.returncode == 0, collected.stdout.decode()


@pytest.mark.parametrize("guide", GUIDES)
def test_every_command_and_option_in_the_guides_exists(guide: str) -> None:
    root = cli()
    for block in (block for block in read(GUIDES[guide].read_text()) if block.language == "bash"):
        for match in COMMAND.finditer(block.code.replace("\\\n", " ")):
            words = shlex.split(match[1].partition(">")[0])
            name, command, rest = root.resolve_command(click.Context(root), words[1:])
            if hasattr(command, "commands"):
                name, command, rest = command.resolve_command(click.Context(command), rest)
            assert not command.make_context(name, rest).args, words


@pytest.mark.parametrize("guide", GUIDES)
def test_every_block_of_the_guides_is_run_or_says_why_not(guide: str) -> None:
    found = read(GUIDES[guide].read_text())
    assert {block.language for block in found} <= {"bash", "python", "text", "yaml"}
    assert {block.note for block in found if block.is_run} <= RUN[guide]
    assert all(block.is_run or block.note.removeprefix("not run: ") for block in found)


@pytest.mark.parametrize("guide", GUIDES)
def test_links_in_the_guides_lead_somewhere(guide: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", GUIDES[guide].read_text()):
        path, _, anchor = target.partition("#")
        if not target.startswith("http"):
            text = (GUIDES[guide].parent / path).read_text()
            headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_the_settings_that_the_guides_name_are_there() -> None:
    for path in GUIDES.values():
        for name in re.findall(r"MILLRACE_([A-Z_]+)", path.read_text()):
            assert name.lower() in {*Settings.model_fields, "config"}, name
