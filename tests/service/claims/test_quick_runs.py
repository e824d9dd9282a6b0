"""Every claim's quick run, through to its verdict."""

from pathlib import Path

import pytest

from service import TrialStore, all_claims, claim_report, evidence, sweep, sweeps_of
from service.claims.claim import More, NoMore
from service.scaling.counted import FULLEST


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
    found = {variant.name: variant.quantities for variant in report.variants}
    counted = [one for one in claim.expect if isinstance(one, More | NoMore) and one.of != FULLEST]
    assert all(found[name][one.of] for one in counted for name in one.variants)  # others have none where none can be
