"""The guide as a site: built strictly, nothing from elsewhere, every drawing drawn; the architecture and the tree."""

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.readme import DOCS, ROOT, TEXTS

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
PACKAGES = ("trainers", "service", "api", "deploy")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` builds it, but for the folder."""
    pytest.importorskip("material", reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Loaded(HTMLParser):
    """What a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value for name, value in attrs if name == LOADS.get(tag) and value]


def test_every_page_is_in_the_site_and_in_its_search(site: Path) -> None:
    for page in set(TEXTS) - {"README"}:
        assert (site / f"{page}.html").is_file(), page
    assert '"location":"algorithms/downpour.html' in (site / "search" / "search_index.json").read_text()


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        parser = Loaded()
        parser.feed(path.read_text())
        assert parser.addresses
        for address in parser.addresses:
            assert not re.match(r"\w+:|//", address), (path.name, address)
            if path.name != "404.html":  # whose addresses are those of the server's root
                assert (path.parent / address.partition("?")[0]).resolve().exists(), (path.name, address)
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", path.read_text()), path


def test_the_site_has_drawings_and_no_mermaid(site: Path) -> None:
    text = (site / "architecture.html").read_text()
    assert "mermaid" not in text
    assert len(re.findall(r'<img alt="[^"]+" src="drawings/drawing-\w+\.svg"', text)) == 4
    assert not list(site.rglob("*.py"))


def draw() -> ModuleType:
    """docs/draw.py, which is no part of a package."""
    found = importlib.util.spec_from_file_location("draw", DOCS / "draw.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_drawings_are_those_of_the_pages() -> None:
    """Where this fails, `python docs/draw.py` says how to draw them again."""
    drawings = draw().drawings()
    assert {path.stem for path in (DOCS / "drawings").iterdir()} == set(drawings)
    assert all(draw().title_of(text) for text in drawings.values())


def test_the_architecture_names_every_folder_and_no_other() -> None:
    named = set(re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:/[\w-]+)+)`", TEXTS["architecture"])) | {"deploy"}
    tracked = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    folders = {str(Path(file).parent) for file in tracked} - {"trainers", "service", "api"}
    if not tracked:
        pytest.skip("this is no checkout")
    assert folders - named == set(), "the page does not name these"
    assert {name for name in named if not (ROOT / name).is_dir()} == set(), "these are not there"


def test_every_file_that_the_architecture_names_is_there() -> None:
    named = set(re.findall(rf"`((?:{'|'.join(PACKAGES)}|tests|docs)/[\w/]+\.\w+)`", TEXTS["architecture"]))
    assert len(named) > 15
    assert {name for name in named if not (ROOT / name).is_file()} == set()
