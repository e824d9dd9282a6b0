"""Writes a finished model in another format: `python -m service.exports.write MODEL FORMAT TARGET`.

It is a process of its own, since PyTorch takes half a gigabyte and seconds, and both end with it. What it says last is
why the model cannot be written so, for whoever asked.
"""

import os
import sys
from pathlib import Path
from typing import Any

NICER = 10
"""So much lower is its priority than the service's, which must answer others meanwhile."""
REFUSED = 3
"""The exit status where the model cannot be written so, and the same again would not help."""


def main(model: Path, form: Any, target: Path) -> int:
    """Export. Returns the exit status."""
    from trainers import MillraceError, export_model  # PyTorch

    os.nice(NICER)
    try:
        export_model(model, form, target)
    except MillraceError as error:
        print(error, flush=True)
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
