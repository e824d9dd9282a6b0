"""The report on 16 bits: its specs are valid, its figures are of the same seeds, and it says what misses a bound."""

from pathlib import Path

import pytest

from benchmarks.precision import BOUNDS, TASKS, VARIANTS, markdown, spec_of


@pytest.mark.parametrize("task", TASKS)
def test_the_variants_of_a_task_differ_in_their_numbers_alone(task: str) -> None:
    files = {"diabetes": Path("table.csv"), "Shakespeare": Path("text.txt")}
    specs = [spec_of(task, variant, files, seed=1) for variant in VARIANTS]
    assert {(spec.precision, spec.wire) for spec in specs} == {
        (precision, wire) for precision in ("float32", "bfloat16") for wire in ("float32", "bfloat16")
    }
    assert (
        len({spec.model_copy(update={"precision": "float32", "wire": "float32"}).model_dump_json() for spec in specs})
        == 1
    )


def test_the_report_holds_each_variant_against_float32_seed_by_seed() -> None:
    runs = {
        task: {variant: [0.5 + (i == 3) * 1.5 * bound, 0.9] for i, variant in enumerate(VARIANTS)}
        for task, (_, bound) in BOUNDS.items()
    }
    lines = markdown(runs, ("0 0 0", "0 0 0")).splitlines()[-9:]
    assert ["missed" in line for line in lines] == [False] * 9  # the median of two seeds is half of that
    runs["digits"]["both"] = [0.5, 0.5]
    assert "missed" in markdown(runs, ("0 0 0", "0 0 0")).splitlines()[-7]
