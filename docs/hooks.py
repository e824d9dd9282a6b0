"""What the build adds to MkDocs: the drawings as files, and names in place of links that lead out of the guide.

In a checkout the same pages are read as they stand: the drawings are Mermaid, and the links lead to the files.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from draw import BLOCK, name_of, title_of

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page as the site has it."""
    folder = posixpath.dirname(page.file.src_uri)

    def drawn(match: re.Match[str]) -> str:
        name = f"drawings/{name_of(match[1])}.svg"
        if not (Path(config.docs_dir) / name).is_file():
            raise FileNotFoundError(f"{page.file.src_uri}: {title_of(match[1])} is not drawn; run docs/draw.py")
        return f"![{title_of(match[1])}]({posixpath.relpath(name, folder or '.')})"

    def named(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if path.startswith("docs/"):
            return match[0]
        return f"{match[1]} (`{path}`)"

    markdown = BLOCK.sub(drawn, markdown)
    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(named, markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, LINK.sub(named, markdown[at:])])
