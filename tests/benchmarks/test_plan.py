"""The cost model against what the papers print, as `benchmarks.plan` reports it."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import plan
from benchmarks.measurement import machine
from benchmarks.papers.parameter_servers import paper_3
from benchmarks.papers.tables import PaperTable, Row, paper_1, paper_2, paper_4
from benchmarks.plan import markdown
from tests.benchmarks.test_scale import FIGURES


def test_paper_2_is_exact_and_paper_3_as_far_off_as_the_report_says() -> None:
    assert paper_2().verdict.startswith("met")
    third = paper_3()
    assert max(third.errors) < 0.08
    assert sorted(third.errors)[2] < 0.05  # three of four rows are within the bound
    assert all("from the other rows" in row.constants for row in third.rows)


@pytest.mark.long  # counts AlexNet and ResNet-50
def test_papers_1_and_4_are_within_their_bounds() -> None:
    whole, variable = paper_1()
    assert whole.verdict.startswith("met")
    assert max(variable.errors) < 0.05
    assert all(table.verdict.startswith("met") for table in paper_4())


def test_a_missed_bound_is_said() -> None:
    table = PaperTable("t", "h", (Row("a", 1.0, 1.5, "c"), Row("b", 1.0, 1.0)), 0.04, 0.02)
    text = markdown([table], 2.0, 1.0)
    assert "**missed**: at most 4%, and it is 50.0%; a median of 2%, and it is 25.0%" in text
    assert "| a | 1 | 1.5 | +50.0% | c |" in text
    assert "at most 1 s: **missed**" in text


def test_the_newest_runs_and_shards_of_such_a_processor_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "RESULTS", tmp_path)
    assert "has measured none here" in plan.runs()[1]
    assert "has measured none here" in plan.shards()[1]
    for day, steps in (("2026-11-02", 2.45), ("2026-11-01", 2.0)):
        figures = asdict(FIGURES) | {"steps_per_s": steps}
        (tmp_path / f"{day}-scale-{machine.maker()}.json").write_text(json.dumps([figures]))
    (tmp_path / "2026-11-03-scale-other.json").write_text("[]")
    _, about, table = plan.shards()
    assert "[its own report](2026-11-02-scale-" in about
    assert "| 8 | 2.45 | 2.50 | 0.980 | met |" in table
