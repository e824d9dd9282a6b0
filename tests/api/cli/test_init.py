"""`millrace init` writes a folder that trains at once, and whose test passes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from service.spec import read_spec
from tests.api.cli.fake_cli import cli_context
from tests.local_runs import LocalRun
from tests.service.fakes import FakeRuns

MILLRACE = Path(sys.executable).parent / "millrace"
TESTS = {"own": "test_my_task"} | dict.fromkeys(("classification", "regression", "language_model"), "test_my_model")


def init(tmp_path: Path, *arguments: object) -> Outcome:
    app = build(cli_context(FakeRuns(), tmp_path / "runs", "http://127.0.0.1:9"))
    return CliRunner().invoke(app, ["init", *map(str, arguments)])


@pytest.mark.parametrize("task", list(TESTS))
def test_a_new_folder(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "it's mine"
    outcome = init(tmp_path, folder, "--task", task)
    assert outcome.exit_code == 0, outcome.output
    assert "millrace run" in outcome.output
    spec = read_spec((folder / "job.yaml").read_text())
    assert spec.code == str(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("my_data", "my_model", "my_task", *set(TESTS.values())):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module(TESTS[task])
    found = [test for name, test in vars(module).items() if name.startswith("test_")]
    assert found
    for test in found:
        test()
    for name in (name for name in (spec.data.name, spec.task.name, spec.model.name) if ":" in name):
        file, _, function = name.partition(":")
        assert hasattr(importlib.import_module(file), function)
    begun = LocalRun(spec.train, tmp_path / "run", limit=2)
    begun.train()
    assert begun.trained[0] > 0


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    outcome = init(tmp_path, tmp_path)
    assert outcome.exit_code == 2
    assert f"{tmp_path} is not empty; name a folder that is not there yet" in outcome.output
    outcome = init(tmp_path, tmp_path / "thesis.tex" / "chapter")
    assert outcome.exit_code == 2
    assert "thesis.tex is no folder; name one, or a place where one can be made" in outcome.output
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("programs")
def test_init_run_and_its_test_as_a_new_user_would(tmp_path: Path) -> None:
    def call(*command: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    call(MILLRACE, "init", "mine")
    call(sys.executable, "-m", "pytest", "-q", "mine")
    ran = call(MILLRACE, "run", "mine/job.yaml", "-o", "json", "--set", "epochs=3")
    result = json.loads(ran.stdout)
    assert result["headline"] == "error"
    assert result["metrics"]["error"] < 0.5
    assert yaml.safe_load((tmp_path / "mine" / "job.yaml").read_text())["code"] == str(tmp_path / "mine")
