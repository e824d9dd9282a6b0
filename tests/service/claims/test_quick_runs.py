"""Every claim's quick run, through to its verdict."""

from pathlib import Path

import pytest

from service import TrialStore, all_claims, claim_report, evidence, sweep, sweeps_of


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("name", list(all_claims()))
def test_a_quick_run_comes_to_a_verdict(name: str, tmp_path: Path) -> None:
    claim = all_claims()[name]
    for spec, folder in sweeps_of(claim, tmp_path, quick=True):
        done = sweep(spec, folder)
        assert done.state == "SUCCEEDED", done.message
    report = claim_report(claim, evidence(TrialStore(tmp_path)), quick=True)
    assert not any(variant.missing for variant in report.variants)
    assert all(variant.costs or not claim.judges_metric for variant in report.variants)
    assert all(values for variant in report.variants for values in variant.quantities.values())
