"""The report on restricted and projected connectivity: its runs are specs, and what they came to is told."""

from pathlib import Path

import pytest

from benchmarks.papers.connectivity import NOTHING, VARIANTS, WHOLE, markdown, network, picture, spec_of


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_a_spec_whose_model_can_be_divided_so(variant: str) -> None:
    spec = spec_of(variant, Path("data"), seed=3)
    model = network(10)
    spec.algorithm.replace_layers(model, as_built=True)
    spec.algorithm.check_model(model, spec.workers.count)


def test_the_report_tells_errors_beside_the_bytes_between_the_layers(tmp_path: Path) -> None:
    runs = {name: [{"error": 0.2, "sent_bytes": 500.0, "examples": 10}] * 2 for name in VARIANTS}
    runs[WHOLE] = [{"error": 0.1, "sent_bytes": 9500.0, "examples": 10}] * 2
    lines = markdown(runs, ("0 0 0", "0 0 0")).splitlines()
    (whole,) = (line for line in lines if line.startswith(f"| {WHOLE}"))
    (nothing,) = (line for line in lines if line.startswith(f"| {NOTHING}"))
    assert "10.00 %" in whole
    assert "900" in whole
    assert "+10.00" in nothing
    picture(runs).savefig(tmp_path / "picture.svg")
