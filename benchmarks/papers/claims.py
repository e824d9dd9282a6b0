"""`python -m benchmarks.papers.claims FOLDER`: the guide's pages of the claims that `millrace claims` has run there.

FOLDER is the command's `--claims-dir`. For each claim that was run whole, its page, its picture and its figures are
written into docs/claims.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

from benchmarks.measurement import machine
from benchmarks.measurement.workload import REPOSITORY
from service import (
    ClaimReport,
    TrialStore,
    all_claims,
    claim_page,
    claim_picture,
    claim_report,
    evidence,
    evidence_before,
)

PAGES = REPOSITORY / "docs" / "claims"


def write(name: str, folder: Path, done: Mapping[str, str]) -> ClaimReport | None:
    """The files of one claim; None where it was not run, or has not ended."""
    store = TrialStore(folder / name)
    if not store.exists or not store.state.is_terminal:
        return None
    report = claim_report(all_claims()[name], found := evidence(store), before=evidence_before(folder / name))
    trials = [row for row in store.trials() if row.started and row.finished]
    minutes = (max(row.finished or 0 for row in trials) - min(row.started or 0 for row in trials)) / 60
    made = [f"command: `millrace claims {name}`", f"{len(trials)} trials in {minutes:.0f} minutes"]
    made += [f"{key}: {done[key]}" for key in ("processor", "versions", "commit", "time")]
    PAGES.mkdir(exist_ok=True)
    (PAGES / f"{name}.md").write_text(claim_page(report, made, f"{name}.svg"))
    (PAGES / f"{name}.json").write_text(report.model_dump_json(indent=1) + "\n")
    (PAGES / f"{name}.svg").write_bytes(claim_picture(report, found)["svg"])
    return report


def main() -> None:
    """Write all of them, and say each verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    done = machine.describe()  # before the first page is a local change
    for name in all_claims():
        report = write(name, folder, done)
        print(f"{name}: {'not run' if report is None else report.verdict}")


if __name__ == "__main__":
    main()
