"""The report on the papers' own figures comes to what the papers conclude."""

from collections.abc import Mapping

import pytest

from service.scaling.evidence import Evidence, Question, Rule, Trial
from service.scaling.report import VariantReport, scaling_report
from service.scaling.statistics import mean, std

SHAPE = (-1.2649110640673518, -0.6324555320336759, 0.0, 0.6324555320336759, 1.2649110640673518)
"""Five seeds with mean 0 and standard deviation 1."""

Row = tuple[int, Rule, str, float, float, float]  # batch, rule, warm-up, rate, error and its spread in percent

FIGURE_1: list[Row] = [
    (256, "linear", "gradual", 0.1, 23.60, 0.12),
    (512, "linear", "gradual", 0.2, 23.48, 0.09),
    (1024, "linear", "gradual", 0.4, 23.53, 0.08),
    (2048, "linear", "gradual", 0.8, 23.49, 0.11),
    (4096, "linear", "gradual", 1.6, 23.56, 0.12),
    (8192, "linear", "gradual", 3.2, 23.74, 0.09),
    (16384, "linear", "gradual", 6.4, 24.79, 0.27),
]  # table 3a, which gives figure 1's numbers
TABLE_1: list[Row] = [
    (256, "none", "none", 0.1, 23.60, 0.12),
    (8192, "linear", "none", 3.2, 24.84, 0.37),
    (8192, "linear", "constant", 3.2, 25.88, 0.56),
    (8192, "linear", "gradual", 3.2, 23.74, 0.09),
]
TABLE_2A: list[Row] = [
    (256, "none", "none", 0.05, 23.92, 0.10),
    (256, "none", "none", 0.1, 23.60, 0.12),
    (256, "none", "none", 0.2, 23.68, 0.09),
    (8192, "linear", "gradual", 1.6, 24.27, 0.08),
    (8192, "linear", "gradual", 3.2, 23.74, 0.09),
    (8192, "linear", "gradual", 6.4, 24.05, 0.18),
    (8192, "none", "none", 0.1, 41.67, 0.10),
    (8192, "sqrt", "gradual", 0.1 * 32**0.5, 26.22, 0.03),
]


def evidence(rows: list[Row], tolerance: float = 0.005) -> Evidence:
    trials = [
        Trial(
            id=f"{row}-{seed}",
            batch=row[0],
            rule=row[1],
            warmup=row[2],
            lr=row[3],
            seed=seed,
            state="SUCCEEDED",
            error=(row[4] + row[5] * z) / 100,
        )
        for row in rows
        for seed, z in enumerate(SHAPE)
    ]
    question = Question(base_batch=256, base_lr=0.1, tolerance=tolerance)
    return Evidence(name="paper 4", question=question, trials=tuple(trials))


def told(rows: list[Row]) -> VariantReport:
    (variant,) = scaling_report(evidence(rows)).variants
    return variant


def verdicts(variant: VariantReport, batch: int) -> Mapping[tuple[str, str, float], str]:
    return {(c.rule, c.warmup, round(c.lr, 3)): c.verdict for c in variant.cells if c.batch == batch}


def test_the_seeds_have_the_papers_mean_and_spread() -> None:
    assert mean(SHAPE) == pytest.approx(0.0)
    assert std(SHAPE) == pytest.approx(1.0)


def test_paper_4_figure_1() -> None:
    """Stable up to 8k, the edge; 16k is worse. A batch that is not close to the breaking point is advised."""
    variant = told(FIGURE_1)
    (linear,) = variant.rules
    assert (linear.rule, linear.warmup) == ("linear", "gradual")
    assert (linear.shown, linear.estimated, linear.breaks_at) == (8192, 8192, 16384)
    assert (linear.safe, linear.safe_lr) == (4096, pytest.approx(1.6))
    assert "up to batch 8192, 32 times the base; it is shown to break by batch 16384" in variant.answer[1]
    assert variant.answer[-1].startswith("Use batch 4096 with the learning rate 1.6 (rule linear with gradual warm-up)")


def test_paper_4_table_1() -> None:
    """Without warm-up, and with a constant one, 8k does not match; with a gradual one it does."""
    found = verdicts(told(TABLE_1), 8192)
    assert found == {
        ("linear", "none", 3.2): "beyond",
        ("linear", "constant", 3.2): "beyond",
        ("linear", "gradual", 3.2): "within",
    }


def test_paper_4_table_2a() -> None:
    """0.1 is best at 256 and 0.1 x 32 at 8k; a fixed rate and the square root work poorly."""
    variant = told(TABLE_2A)
    small, large = variant.rates
    assert (small.best_lr, large.best_lr) == (0.1, 3.2)
    assert large.predicted == {"none": 0.1, "sqrt": pytest.approx(0.5657, rel=1e-3), "linear": pytest.approx(3.2)}
    assert large.agrees == ["linear"]
    assert [tried.lr for tried in small.tried if tried.as_good] == [0.1, 0.2]  # "slightly larger also work well"
    assert variant.rules[0].rule == "linear"
    assert variant.lead is not None
    assert (variant.lead.over, variant.lead.shown) == ("sqrt", True)
    assert variant.lead.low == pytest.approx(0.0248, abs=0.001)


def test_the_tolerance_decides() -> None:
    """A rise of 0.7 points is a loss, or none, by what the question says."""
    rows: list[Row] = [(128, "none", "none", 0.01, 42.0, 0.1), (1024, "sqrt", "none", 0.01 * 8**0.5, 42.7, 0.1)]
    for tolerance, expected in ((0.005, "beyond"), (0.01, "within")):
        found = evidence(rows, tolerance)
        question = Question(base_batch=128, base_lr=0.01, tolerance=tolerance)
        (variant,) = scaling_report(found.model_copy(update={"question": question})).variants
        assert variant.cells[-1].verdict == expected
