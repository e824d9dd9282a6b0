"""The tuning report: the best settings, and which axes matter."""

import random
from xml.etree import ElementTree

import pytest

from service.scaling.evidence import Point
from service.tuning.figures import tuning_figures
from service.tuning.markdown import tuning_markdown
from service.tuning.report import TuningReport, tuning_report
from tests.service.tuning.evidence import evidence, grid, trial


@pytest.fixture(scope="module")
def report() -> TuningReport:
    return tuning_report(grid())


def test_the_best_settings_and_what_matters(report: TuningReport) -> None:
    assert report.best is not None
    assert {axis: report.best.settings[axis] for axis in ("optimizer.lr", "optimizer.name")} == {
        "optimizer.lr": 0.1,
        "optimizer.name": "momentum",
    }
    shares = {one.axis: one.share for one in report.importances}
    assert [*shares][:2] == ["optimizer.lr", "optimizer.name"]
    assert shares["optimizer.lr"] > 0.8
    assert max(shares["seed"], shares["data.limit"]) < 0.05
    assert sum(shares.values()) == pytest.approx(1)
    means = [one.mean for one in report.combinations]
    assert means == sorted(means)
    assert len(means) == 16
    assert report.answer[0].startswith("The best settings are optimizer.lr 0.1, optimizer.name momentum")
    assert "are shown to be worse with 95 % confidence" in report.answer[1]
    assert "Most of the differences go with optimizer.lr" in report.answer[2]
    assert report.answer[2].endswith("; the other axes have less than 1% each.")
    assert len(report.answer) == 3  # 0.1 has neighbours on either side


def test_the_order_of_the_trials_does_not_matter(report: TuningReport) -> None:
    trials = [*grid().trials]
    random.Random(1).shuffle(trials)
    assert tuning_report(evidence(trials)) == report


def test_one_seed_does_not_tell_chance_and_the_end_of_an_axis_is_told() -> None:
    found = tuning_report(evidence(trial(i, 0.5 - 0.1 * i, **{"optimizer.momentum": 0.1 * i}) for i in range(3)))
    assert found.importances == []
    assert any("add the axis `seed`" in line for line in found.answer)
    assert any("No optimizer.momentum larger than 0.2 was tried" in line for line in found.answer)
    assert any("Which axis matters is not told" in line for line in found.answer)


def test_what_broke_was_stopped_or_failed_is_not_the_best() -> None:
    points = (Point(examples=10, epoch=1, seconds=1, train_loss=0.5, test_error=0.05),)
    whole = (Point(examples=40, epoch=4, seconds=4, train_loss=0.3, test_error=0.3),)
    stopped = {"state": "STOPPED", "reason": "Asha", "points": points, "error": 0.05}
    broke = {"state": "FAILED", "reason": "LossNotFinite: NaN", "error": None}
    trials = [trial(i, 0.3 + i / 100, **{"optimizer.lr": 0.1 * (i + 1)}) for i in range(6)]
    trials[0] = trials[0].model_copy(update={"points": whole})
    trials += [trial(6, 0.05, **{"optimizer.lr": 0.7}).model_copy(update=stopped)]
    trials += [trial(7, 0.05, **{"optimizer.lr": 9.0}).model_copy(update=broke), trial(8, None, **{"optimizer.lr": 2})]
    found = tuning_report(evidence(trials))
    assert found.best is not None
    assert found.best.trials == ["t000"]
    by_trial = {one.trials[0]: one for one in found.combinations}
    assert by_trial["t006"].weights == [0.25]  # it trained one of four epochs
    assert by_trial["t007"].mean is None
    assert [one.id for one in found.without_result] == ["t006", "t007", "t008"]
    assert found.importances[0].trials == 8  # but for the one that failed
    assert "| t007 |" in tuning_markdown(found)


def test_an_axis_that_some_trials_lack_is_judged_among_the_others() -> None:
    trials = [trial(i, 0.1 + 0.01 * (i % 5), **{"optimizer.name": "sgd"}) for i in range(5)]
    trials += [
        trial(5 + i, 0.5 + 0.1 * i, **{"optimizer.name": "momentum", "optimizer.momentum": 0.1 * i}) for i in range(5)
    ]
    found = tuning_report(evidence(trials))
    assert "optimizer.momentum (" in found.answer[2]
    assert " among the 5 trials that have it)" in found.answer[2]
    counted = {one.axis: one.trials for one in found.importances}
    assert counted == {"optimizer.name": 10, "optimizer.momentum": 5}
    assert {name for name, _ in tuning_figures(found)} >= {"parallel.png", "importance.svg"}


def test_nothing_is_said_of_nothing() -> None:
    found = tuning_report(evidence([]))
    assert found.answer == ["There are no trials."]
    assert [*tuning_figures(found)] == []
    assert "There are no trials." in tuning_markdown(found)


def test_markdown_and_pictures_hold_the_same(report: TuningReport) -> None:
    text = tuning_markdown(report)
    assert text.startswith("# Tuning report: tuned\n")
    assert "| optimizer.lr | " in text
    drawn = dict(tuning_figures(report))
    assert set(drawn) == {f"{name}.{form}" for name in ("parallel", "importance") for form in ("png", "svg")}
    assert ElementTree.fromstring(drawn["parallel.svg"]).tag.endswith("svg")
    assert TuningReport.model_validate_json(report.model_dump_json()) == report
