"""Prints the report of a sweep as JSON: `python -m service.sweeps.reporting.tell SWEEP_FOLDER`.

It is a process of its own where the importance of axes is asked for: scikit-learn, on which Optuna grows its forest,
takes 140 MB, which end with it.
"""

import os
import sys
from pathlib import Path

from service.sweeps.reporting.any_report import report_of
from service.sweeps.reporting.draw import NICER
from service.sweeps.trial_store import TrialStore

if __name__ == "__main__":
    os.nice(NICER)
    print(report_of(TrialStore(Path(sys.argv[1])))[0].model_dump_json())
