"""What a claim runs, one sweep after another: where its networks start from others, the sweep that trains these."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from service.claims.claim import BEFORE, Claim
from service.scaling.evidence import Evidence
from service.sweeps.spec import SweepSpec
from service.sweeps.trial_store import TrialState, TrialStore
from service.sweeps.views import evidence


def sweeps_of(
    claim: Claim, folder: Path, quick: bool = False, overrides: list[str] | None = None
) -> Iterator[tuple[SweepSpec, Path]]:
    """Each sweep with its folder; the next is asked for when the one before has ended.

    Raises SpecInvalid where the overrides, `a.b=c`, do not fit.
    """
    before = claim.asked_before(quick, overrides)
    if before is not None:
        yield before, folder / BEFORE
        gather(TrialStore(folder / BEFORE))
    yield claim.asked(quick, overrides, folder), folder


def evidence_before(folder: Path) -> Evidence | None:
    """Of the sweep that was run first in a claim's folder; None where there was none."""
    store = TrialStore(folder / BEFORE)
    return evidence(store) if store.exists else None


def gather(store: TrialStore) -> None:
    """Copy each finished model to `VARIANT-SEED.safetensors` in the sweep's folder."""
    for trial in store.trials():
        if trial.state is TrialState.SUCCEEDED:
            name = f"{trial.settings['variant']}-{trial.job_spec.seed}.safetensors"
            shutil.copyfile(store.run_dir(trial.id) / "model.safetensors", store.folder / name)
