"""Reads README.md and the guide: their sections, their fenced blocks, and how the commands in them are run for real.

A comment before a block says what is special about it: `not run: <why>`, `as in <a file>` (a part of it, which tests of
that file run), `before the server`, `server` (goes on while the others of its page run), `after the server`, `with the
server` (Python).
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measurement.processes import free_port

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(?:<!-- (?P<note>[^\n]*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)\n```", re.DOTALL)
HEADING = re.compile(r"^#{1,3} (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SERVER = "127.0.0.1:8466"


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    section: str
    language: str
    code: str
    note: str

    @property
    def is_run(self) -> bool:
        """Whether a test runs it."""
        return not self.note.startswith(("not run: ", "as in "))


def blanked(text: str) -> str:
    """The same text without its fenced blocks, at the same places: a `# comment` in a block is no heading."""
    return FENCED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def read(text: str) -> list[Block]:
    """The blocks of a document."""
    headings = [(match.start(), match[1]) for match in HEADING.finditer(blanked(text))]
    found = []
    for match in BLOCK.finditer(text):
        section = [title for start, title in headings if start < match.start()][-1]
        found.append(Block(section, match["language"], match["code"], match["note"] or ""))
    return found


PATHS = {
    "README": ROOT / "README.md",
    **{str(path.relative_to(DOCS).with_suffix("")): path for path in sorted(DOCS.rglob("*.md"))},
}
"""Every page by its name, such as `algorithms/sync`."""
TEXTS = {page: path.read_text() for page, path in PATHS.items()}
BLOCKS = {page: read(text) for page, text in TEXTS.items()}


def blocks(page: str, language: str, section: str = "", note: str = "") -> list[str]:
    """The code of a page's blocks, or of one of its sections', in order; at least one."""
    found = [b.code for b in BLOCKS[page] if (b.language, b.note) == (language, note) and section in ("", b.section)]
    assert found, f"{page} has no {language} in {section!r} with the note {note!r}"
    return found


@dataclass
class Place:
    """A working copy for the commands: the examples, folders and a port of its own."""

    folder: Path
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        shutil.copytree(ROOT / "examples", self.folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))

    @property
    def environment(self) -> dict[str, str]:
        """As with the environment active; nothing of the user's own settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
        own = {"STATE_DIR": self.folder / "state", "CONFIG": self.folder / "config.toml", "PORT": self.port}
        state = {f"MILLRACE_{name}": str(value) for name, value in own.items()}
        return {**kept, **state, "PATH": path, "no_proxy": "127.0.0.1"}

    def here(self, code: str) -> str:
        """The same code with this place's port."""
        return code.replace(SERVER, f"127.0.0.1:{self.port}")

    def start(self, command: list[str]) -> "subprocess.Popen[str]":
        """A process in a group of its own."""
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def shell(self, code: str, within_s: float = 400) -> str:
        """What the commands print, all of which succeed; one shell, so that its variables last."""
        return self._finished(["bash", "-euo", "pipefail", "-c", self.here(code)], within_s)

    def python(self, code: str, within_s: float = 400) -> str:
        """What the program prints."""
        return self._finished([sys.executable, "-c", self.here(code)], within_s)

    def _finished(self, command: list[str], within_s: float) -> str:
        process = self.start(command)
        try:
            output, _ = process.communicate(timeout=within_s)
        finally:
            end(process)
        assert process.returncode == 0, f"exit status {process.returncode} of\n{command[-1]}\n{output}"
        return output


def end(process: "subprocess.Popen[str]", patience_s: float = 20) -> None:
    """End a process and its group: politely, then not."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def serving(place: Place, page: str) -> Iterator[None]:
    """A page's server while the body runs; then the page's way of ending it, whatever has happened."""
    (command,) = blocks(page, "bash", note="server")
    (after,) = blocks(page, "bash", note="after the server")
    with server(place, command, after):
        yield


@contextlib.contextmanager
def server(place: Place, command: str, after: str) -> Iterator[None]:
    """A server that is started by one command, while the body runs, and its Ray ended by another."""
    process = place.start(["bash", "-c", f"exec {place.here(command)}"])
    assert process.stdout is not None
    try:
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("Ray dashboard"):
                break
        assert f"serves on http://127.0.0.1:{place.port}" in said, said
        reader = threading.Thread(target=process.stdout.read, daemon=True)  # so that it never waits for us
        reader.start()
        yield
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(120) == 0
        reader.join(60)
    finally:
        end(process)
        ended = place.shell(after)
        process.stdout.close()
    assert "Ray has ended" in ended
