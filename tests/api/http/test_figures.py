"""The figures of a sweep's report, as they are drawn, over HTTP and on the command line."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from api.cli.actions.sweeps import print_report
from benchmarks.measurement.recorded_sweep import record
from service import ScalingReport, TrialStore, TuningReport, parse_sweep
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service


@pytest.fixture
def recorded(service: Service, tmp_path: Path) -> TrialStore:
    return record(tmp_path / "sweeps" / "sweep-1", steps_an_epoch=1)


def test_twelve_readers_get_the_figures_of_one_drawing(service: Service, recorded: TrialStore) -> None:
    path = f"/v1/sweeps/{recorded.folder.name}/figures"
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: service.http.get(path, timeout=120), range(12)))
    names = answers[0].json()
    assert {answer.text for answer in answers} == {answers[0].text}
    assert {"curves.png", "error.png", "rates.svg"} <= set(names)
    assert service.http.get(f"{path}/error.png").content.startswith(b"\x89PNG")
    assert service.http.get(f"{path}/error.svg").headers["content-type"] == "image/svg+xml"
    missing = service.http.get(f"{path}/other.png")
    assert missing.status_code == 404
    assert "only curves.png" in missing.json()["detail"]
    assert len(os.listdir(recorded.folder.parent / ".figures")) == 1


def test_a_report_that_is_only_printed_draws_nothing(
    service: Service,
    recorded: TrialStore,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    context = cli_context(service.runs, tmp_path / "runs", service.url)
    print_report(context, None, recorded.folder.name, None, as_json=False)
    assert "# Scaling report" in capsys.readouterr().out
    assert not (recorded.folder.parent / ".figures").exists()
    print_report(context, None, recorded.folder.name, tmp_path / "out", as_json=False)
    assert {"report.json", "report.md", "error.png", "rates.svg"} <= set(os.listdir(tmp_path / "out"))


@pytest.mark.long
def test_a_sweep_that_varies_no_batch_has_a_report_of_its_own(
    service: Service, recorded: TrialStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"data": "digits", "model": "mlp", "workers": 1, "epochs": 3}
    spec = parse_sweep({"job": job, "axes": {"optimizer.lr": [0.01, 0.1, 1.0], "seed": [0, 1]}})
    record(tmp_path / "sweeps" / "sweep-2", steps_an_epoch=1, spec=spec)
    assert isinstance(service.client.report("sweep-1"), ScalingReport)
    report = service.client.report("sweep-2")
    assert isinstance(report, TuningReport)
    assert (len(report.combinations), report.importances[0].axis) == (3, "seed")  # its rates come to the same error
    assert service.http.get("/v1/sweeps/sweep-2/figures").json() == [
        f"{name}.{form}" for name in ("importance", "parallel") for form in ("png", "svg")
    ]
    context = cli_context(service.runs, tmp_path / "runs", service.url)
    print_report(context, None, "sweep-2", tmp_path / "out", as_json=False)
    told = capsys.readouterr().out
    assert "# Tuning report: sweep" in told
    assert "no baseline" not in told
    assert {"report.json", "report.md", "parallel.png"} <= set(os.listdir(tmp_path / "out"))
