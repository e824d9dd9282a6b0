"""Ends a start that stands still: what supervises the service begins it again, and the log says where it stood."""

import contextlib
import faulthandler
from collections.abc import Iterator

CONNECT_TIMEOUT_S = 300.0
"""How long connecting to Ray may take: 1 s is usual, and 20 s were seen under a load of 12. Ray itself sets no limit to
some of its waits, and does not hear of signals during them."""


@contextlib.contextmanager
def ends_if_it_stands_still(limit_s: float = CONNECT_TIMEOUT_S) -> Iterator[None]:
    """If what is inside takes longer than `limit_s` seconds, write where each thread stands to standard error, and end
    this process with status 1, as a thread outside Python: it needs nobody's lock. Ray and its runs go on."""
    faulthandler.dump_traceback_later(limit_s, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
