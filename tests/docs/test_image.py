"""The Dockerfile, without Docker: what it copies is enough to install and to import, and it asks for nothing more."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.docs.readme import ROOT

PACKAGES = ("trainers", "service", "api", "deploy")


def instructions() -> list[tuple[str, str]]:
    """Every instruction and its argument."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    return [
        (word, rest) for line in lines if line and not line.startswith("#") for word, _, rest in [line.partition(" ")]
    ]


def copies() -> list[tuple[list[str], str]]:
    """Sources and destination of each COPY."""
    found = []
    for word, rest in instructions():
        if word == "COPY":
            *sources, destination = [part for part in shlex.split(rest) if not part.startswith("--")]
            found.append((sources, destination))
    return found


def ignored(name: str) -> bool:
    """Whether .dockerignore keeps a path at the root out; the last pattern that fits decides."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    verdict = False
    for line in lines:
        if line.lstrip("!") in ("*", name):
            verdict = not line.startswith("!")
    return verdict


def test_everything_that_is_copied_exists_and_reaches_the_build() -> None:
    for sources, _ in copies():
        for source in sources:
            assert (ROOT / source).exists(), source
            assert not ignored(source), source
    assert ignored(".venv")
    assert ignored(".git")
    assert ignored("runs")


def test_every_package_that_is_installed_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = {source for sources, _ in copies() for source in sources}
    assert packages == set(PACKAGES)
    assert copied >= packages | {"pyproject.toml", "constraints.txt", project["project"]["readme"]}


def test_it_runs_without_privileges_and_takes_all_from_the_package_registry() -> None:
    words = [word for word, _ in instructions()]
    told = dict(instructions())
    assert told["USER"] not in ("root", "0")
    assert words.index("USER") > max(i for i, (word, _) in enumerate(instructions()) if word == "RUN")
    assert re.fullmatch(r"python:3\.\d+-slim", told["FROM"])  # no registry's name before it
    assert words.count("FROM") == 1
    runs = [rest for word, rest in instructions() if word == "RUN"]
    assert [run for run in runs if "pip install" in run and "--constraint constraints.txt" in run]
    assert not [run for run in runs if re.search(r"://|apt|curl|wget|--index|--find-links", run)]


@pytest.mark.parametrize(("device", "index"), [("cuda", ""), ("cpu", "the index"), ("tpu", None)])
def test_the_device_chooses_the_build_of_torch(tmp_path: Path, device: str, index: str | None) -> None:
    """The first RUN, in a plain folder, with a pip that only says what it was asked for."""
    (tmp_path / "pip").write_text('#!/bin/sh\necho "${PIP_EXTRA_INDEX_URL-}|$*"\n')
    (tmp_path / "pip").chmod(0o755)
    command = next(rest for word, rest in instructions() if word == "RUN")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DEVICE": device, "CPU_INDEX": "the index"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    if index is None:
        assert (done.returncode, done.stdout) == (2, "")
        return
    assert done.returncode == 0, done.stderr
    told, _, asked = done.stdout.strip().partition("|")
    assert told == index
    extras = re.search(r"\.\[([\w,]+)\]", asked)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"]) - {"dev"}


def test_no_token_travels_to_the_build() -> None:
    last = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if "viewer-token" in line]
    assert last == ["deploy/prometheus/viewer-token"]
    assert (ROOT / ".dockerignore").read_text().strip().endswith(("viewer-token", "__pycache__"))


def test_it_starts_a_command_that_exists() -> None:
    program, command = json.loads(dict(instructions())["CMD"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert program in project["project"]["scripts"]
    assert command == "serve"


@pytest.mark.slow
def test_what_is_copied_can_be_installed_and_imported(tmp_path: Path) -> None:
    """The RUN of the build, but for the dependencies, which this environment has."""
    if int(metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("needs setuptools 77 to build without fetching it")
    source, target = tmp_path / "src", tmp_path / "site"
    for sources, destination in copies():
        for name in sources:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / destination, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                source.mkdir(exist_ok=True)
                shutil.copy(ROOT / name, source / name)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--constraint", "constraints.txt", "--target", target, "."]
    subprocess.run(pip, cwd=source, check=True)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import trainers.runtime.api, trainers.runtime.actors.worker, trainers.runtime.actors.shard\n"
        "import trainers.runtime.actors.evaluator\n"
        "import trainers.collectives.process_group, trainers.collectives.shared_memory, trainers.models.registry\n"
        "import trainers.algorithms.downpour.client, trainers.data.datasets, deploy.main, api.http.app, service\n"
        "print(*(sys.modules[name].__file__ for name in ('trainers', 'service', 'api', 'deploy')), sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, target], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    files = done.stdout.splitlines()
    assert [Path(file).parent for file in files] == [target / package for package in PACKAGES]
    for kind in ("*.py", "page/**/*.*"):  # the modules, and the web page, which is made of other files
        installed = {path.relative_to(target) for package in PACKAGES for path in (target / package).glob(f"**/{kind}")}
        there = {path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).glob(f"**/{kind}")}
        assert installed == there
    entry = (target / "bin" / "millrace").read_text()
    assert "from deploy.command import main" in entry
