"""That no command of the guide is left out of the walk through it, which takes minutes; this takes none."""

from tests.docs.readme import BLOCKS
from tests.docs.test_walk import WALKED


def test_every_block_that_can_be_run_is_run() -> None:
    """By a test of the walk; a new section needs one."""
    runnable: dict[str, set[str]] = {}
    for page, found in BLOCKS.items():
        for block in found:
            if block.language in ("bash", "python") and block.is_run:
                runnable.setdefault(page, set()).add(block.section)
    assert runnable == WALKED
