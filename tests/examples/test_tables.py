"""The examples on tables train, in small."""

import sys
from pathlib import Path

import pytest

from service import read_spec_file
from tests.local_runs import LocalRun

FOLDER = Path(__file__).parents[2] / "examples" / "tables"


@pytest.mark.parametrize("name", ["diabetes", "flats"])
def test_an_example_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_tables.py", str(tmp_path)])
    exec((FOLDER / "make_tables.py").read_text())
    (file,) = tmp_path.glob(f"{name}.*")
    spec = read_spec_file(FOLDER / f"{name}.yaml", [f"data.root={file}", "epochs=1", "data.limit=200"])
    run = LocalRun(spec.train, tmp_path / "run")
    run.train()
    assert run.trained == {0: 200}
