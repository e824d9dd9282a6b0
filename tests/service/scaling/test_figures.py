"""The figures: which there are, and that they hold what was measured."""

import struct
from xml.etree import ElementTree

import pytest

from service.scaling.evidence import Evidence
from service.scaling.figures import figures
from service.scaling.report import scaling_report
from tests.service.scaling.synthetic import evidence, sweep, trial

NAMES = {f"{name}.{form}" for name in ("error", "rates", "curves", "target") for form in ("png", "svg")}


@pytest.fixture(scope="module")
def drawn() -> dict[str, bytes]:
    found = sweep(points=40, seeds=3)
    return dict(figures(scaling_report(found), found))


def names(found: Evidence) -> set[str]:
    return {name.partition(".")[0] for name, _ in figures(scaling_report(found), found)}


def test_all_four_in_both_forms(drawn: dict[str, bytes]) -> None:
    assert set(drawn) == NAMES
    for name, data in drawn.items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(data).tag.endswith("svg")
        else:
            width, height = struct.unpack(">II", data[16:24])
            assert width > 900
            assert height > 500


def test_the_same_evidence_gives_the_same_pictures(drawn: dict[str, bytes]) -> None:
    found = sweep(points=40, seeds=3)
    again = dict(figures(scaling_report(found), found))
    assert [name for name in NAMES if name.endswith(".png") and again[name] != drawn[name]] == []


def test_what_was_not_measured_is_not_drawn() -> None:
    assert names(evidence([])) == set()
    assert names(sweep(seeds=2)) == {"error", "rates"}
    assert names(evidence([trial(128, "linear", error=0.1)])) == {"rates"}


def test_curves_are_drawn_in_few_points_however_many_there_are() -> None:
    few, many = (sweep(batches=(64, 128), seeds=2, points=points) for points in (100, 1000))
    sizes = [len(dict(figures(scaling_report(found), found))["curves.svg"]) for found in (few, many)]
    assert sizes[1] < 1.2 * sizes[0]


@pytest.mark.parametrize("loss", [0.0, -1.0, -1e30, 1e30])
def test_a_baseline_whose_loss_never_moves_is_drawn(loss: float) -> None:
    found = sweep(batches=(64, 128), seeds=2, points=5)
    still = [
        t.model_copy(update={"points": tuple(p.model_copy(update={"train_loss": loss}) for p in t.points)})
        for t in found.trials
    ]
    assert "curves" in names(found.model_copy(update={"trials": tuple(still)}))


def test_variants_have_figures_of_their_own() -> None:
    found = sweep(batches=(64, 128), seeds=2)
    trials = [
        t.model_copy(update={"id": f"{t.id}-{m}", "settings": {"optimizer.momentum": m}})
        for t in found.trials
        for m in (0.9, 0.99)
    ]
    assert names(evidence(trials)) == {"error-1", "error-2", "rates-1", "rates-2"}
