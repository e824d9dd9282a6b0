"""A start that stands still ends, and says where it stood."""

import subprocess
import sys
from pathlib import Path

from deploy.watchdog import ends_if_it_stands_still
from tests.docs.readme import ROOT

STANDS_STILL = """
import ctypes, sys
from deploy.watchdog import ends_if_it_stands_still

def connects():
    ctypes.PyDLL(None).sleep(600)  # in C, with Python's lock held, as Ray's client may wait

with ends_if_it_stands_still(0.2):
    connects()
"""


def test_what_waits_in_c_for_ever_is_ended_and_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STANDS_STILL], capture_output=True, text=True, check=False, cwd=ROOT, timeout=200
    )
    assert done.returncode == 1
    assert "in connects" in done.stderr


def test_what_comes_to_an_end_goes_on(tmp_path: Path) -> None:
    with ends_if_it_stands_still(300.0):
        (tmp_path / "done").touch()
    assert (tmp_path / "done").exists()
