"""The house is seen at a glance: no folder, file or function grows beyond what a reader takes in at once."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_FILES, MOST_LINES, MOST_FUNCTION_LINES = 20, 400, 60
FOLDERS = ("trainers", "service", "api", "deploy", "benchmarks", "tests")
GROWS = ("benchmarks/results",)
"""Folders of dated reports."""


def sources() -> list[Path]:
    """Our own code, relative to the repository; what lies in a `vendor` folder is others'."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = [Path(name) for name in listed if (ROOT / name).is_file()]
    return [path for path in found if path.suffix in (".py", ".js", ".css") and "vendor" not in path.parts]


SOURCES = sources()


def test_nothing_is_left_of_a_merge() -> None:
    marks = ["-e", "^<<<<<<< ", "-e", "^>>>>>>> "]
    found = subprocess.run(["git", "grep", "-nI", *marks], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout == ""


@pytest.mark.parametrize("folder", sorted({str(path.parent) for path in SOURCES} - set(GROWS)))
def test_a_folder_has_few_files(folder: str) -> None:
    files = [path.name for path in SOURCES if str(path.parent) == folder]
    assert len(files) <= MOST_FILES, f"{folder} has {len(files)} files; give what belongs together a folder of its own"


def test_a_file_is_short() -> None:
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in SOURCES}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_a_function_is_short() -> None:
    found = {}
    for path in (path for path in SOURCES if path.suffix == ".py"):
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MOST_FUNCTION_LINES:
                    found[f"{path}:{node.name}"] = length
    assert found == {}
