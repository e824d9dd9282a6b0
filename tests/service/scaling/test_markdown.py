"""The report for people."""

from service.scaling.markdown import markdown
from service.scaling.report import scaling_report
from tests.service.scaling.synthetic import evidence, sweep, trial


def test_the_answer_stands_first_and_the_tables_below() -> None:
    text = markdown(scaling_report(sweep(points=20)))
    titles = [line for line in text.splitlines() if line.startswith("#")]
    assert titles == [
        "# Scaling report: synthetic",
        "## The answer",
        "## Error by batch and rule",
        "## The best rate at each batch",
        "## Until an error of 10.55 %",
        "## Training curves as a proxy",
        "## What this does not tell, and what would",
    ]
    assert "- Use batch 512 with the learning rate 0.4 (rule linear with gradual warm-up)" in text
    assert "| rate | median error | seeds |" in text
    assert "The median error is that over the evaluations of a run's last 5 epochs." in text
    assert "| 1024 | linear | gradual | 0.8 | 10." in text


def test_every_row_of_a_table_has_its_columns() -> None:
    trials = [trial(128, "linear", seed=s, state="FAILED", reason="Odd | thing\nin two lines") for s in range(30)]
    text = markdown(scaling_report(evidence([*sweep(seeds=2).trials, *trials])))
    assert "And 10 more." in text
    assert "FAILED | Odd \\| thing in two lines |" in text
    width = 0
    for line in text.splitlines():
        cells = line.replace("\\|", "").count("|")
        assert cells in (0, width) or not width
        width = cells


def test_proposals_are_listed_with_what_they_settle() -> None:
    text = markdown(scaling_report(sweep(batches=(64, 128), points=20)))
    assert "## What this does not tell, and what would" in text
    assert "  - Add batch 256, linear, warm-up gradual, rate 0.2, seeds 0, 1, 2, 3, 4, about " in text


def test_no_trials() -> None:
    assert "There are no trials." in markdown(scaling_report(evidence([])))
