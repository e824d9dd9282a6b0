"""Every relative link and anchor of the pages that people read leads somewhere, in a checkout as in the site."""

import re
from pathlib import Path

import pytest

from tests.docs.readme import PATHS, ROOT, blanked

PAGES = [
    *PATHS.values(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "papers" / "README.md",
]  # fmt: skip
LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"|^\[[^\]]+\]: (\S+)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """As GitHub and MkDocs make them of headings."""
    titles = re.findall(r"^#+ (.+)$", blanked(text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def targets(text: str) -> set[str]:
    """All that a page links to."""
    return {next(filter(None, match.groups())) for match in LINK.finditer(blanked(text))}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target in targets(text):
        if re.match(r"\w+:", target):
            assert target.startswith("https://"), target
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert there.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(there.read_text()), target


def test_every_reference_is_defined() -> None:
    for page in PAGES:
        text = blanked(page.read_text())
        used = set(re.findall(r"\]\[([^\]]+)\]", text))
        assert used == set(re.findall(r"^\[([^\]]+)\]: docs/", text, re.MULTILINE)), page


def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n[a](missing.md)\n")
    with pytest.raises(AssertionError, match=r"missing\.md"):
        test_links_lead_somewhere(page)
