"""Draws the figures of a sweep's report: `python -m service.sweeps.reporting.draw SWEEP_FOLDER INTO`.

It is a process of its own, since matplotlib takes 100 MB and seconds of Python's one lock, and both end with it. It
writes the figures into a folder, and says a line for each trial that it has read and each figure that it has drawn.
"""

import os
import resource
import sys
from pathlib import Path

from service.sweeps.reporting.any_report import report_figures, report_of
from service.sweeps.trial_store import TrialStore

NICER = 5
"""So much lower is its priority than the service's, which must answer others meanwhile: a third of its share."""
MOST_BYTES = 4 * 1024**3
"""Of memory. A drawing of 20 trials takes 150 MB; one that takes this much would take it from jobs."""


def main(folder: Path, into: Path) -> int:
    """Draw. Returns the exit status."""
    os.nice(NICER)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    report, found = report_of(TrialStore(folder), lambda trial: print(f"read {trial}", flush=True))
    for name, data in report_figures(report, found):
        (into / name).write_bytes(data)
        print(f"drew {name}", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
    except MemoryError:
        sys.exit(
            f"they take more than {MOST_BYTES >> 30} GiB of memory: give the sweep fewer settings that make variants"
        )
