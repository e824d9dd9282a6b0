"""The composition root, the settings, and what it takes to run Millrace somewhere.

Our packages have plain names. Before anything else is imported, this file makes sure that each of them is ours.
"""

import importlib.util
import sys
from pathlib import Path

OURS = Path(__file__).parents[1]


def hidden() -> str | None:
    """A sentence about a foreign package that stands before one of ours on the path, if there is one."""
    for name in ("trainers", "service", "api"):
        spec = importlib.util.find_spec(name)
        found = Path(spec.origin).parent if spec is not None and spec.origin else None
        if found != OURS / name:
            return f"millrace: the package `{name}` in {found} hides Millrace's own; rename it, or change the path"
    return None


if (_sentence := hidden()) is not None:
    print(_sentence, file=sys.stderr)
    sys.exit(2)
