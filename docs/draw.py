"""Renders the Mermaid drawings of the guide to SVG, once for each text: `python docs/draw.py path/to/mermaid.min.js`.

The site shows the files in `docs/drawings`, so that neither a build nor a reader needs Mermaid or the internet. Who
changes a drawing runs this again, with Mermaid's file from its npm package (`npm pack mermaid@11`) and with Chromium.
"""

import hashlib
import re
import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
DRAWINGS = DOCS / "drawings"
BLOCK = re.compile(r"^```mermaid\n(.*?)\n```$", re.DOTALL | re.MULTILINE)

COLOURS = {  # Mermaid computes with colours, so it is given plain ones; in the file they follow the reader's system
    "#1f2328": ("ink", "#1f2328", "#dfe3e8"),
    "#e9eef5": ("node", "#e9eef5", "#2a3340"),
    "#f6f8fa": ("group", "#f6f8fa", "#1b2129"),
    "#57606a": ("line", "#57606a", "#9aa4af"),
    "#fdfdfd": ("paper", "#ffffff", "#1e2129"),
}
VARIABLES = {
    "primaryColor": "#e9eef5", "primaryTextColor": "#1f2328", "primaryBorderColor": "#57606a", "lineColor": "#57606a",
    "textColor": "#1f2328", "mainBkg": "#e9eef5", "nodeBorder": "#57606a", "clusterBkg": "#f6f8fa",
    "clusterBorder": "#57606a", "titleColor": "#1f2328", "edgeLabelBackground": "#fdfdfd", "nodeTextColor": "#1f2328",
    "actorBkg": "#e9eef5", "actorBorder": "#57606a", "actorTextColor": "#1f2328", "actorLineColor": "#57606a",
    "signalColor": "#57606a", "signalTextColor": "#1f2328", "noteBkgColor": "#f6f8fa", "noteBorderColor": "#57606a",
    "noteTextColor": "#1f2328", "fontFamily": "Arial, Helvetica, sans-serif", "fontSize": "14px",
}  # fmt: skip
PROGRAM = """async ([name, text, variables]) => {
  mermaid.initialize({startOnLoad: false, theme: "base", themeVariables: variables, htmlLabels: false,
    fontFamily: variables.fontFamily, flowchart: {htmlLabels: false, useMaxWidth: false},
    sequence: {useMaxWidth: false, mirrorActors: false}});
  const {svg} = await mermaid.render(name, text);
  const parsed = new DOMParser().parseFromString(svg, "text/html").querySelector("svg");
  return new XMLSerializer().serializeToString(parsed);
}"""


def name_of(text: str) -> str:
    """The file of a drawing, by its text."""
    return f"drawing-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def title_of(text: str) -> str:
    """What a drawing shows, in words."""
    found = re.search(r"^ *accTitle: (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def drawings() -> dict[str, str]:
    """The text of every drawing in the guide, by its name."""
    pages = [path.read_text() for path in sorted(DOCS.rglob("*.md"))]
    return {name_of(match[1]): match[1] for page in pages for match in BLOCK.finditer(page)}


def coloured(svg: str) -> str:
    """The same drawing in the colours of the reader's system."""
    light = "".join(f"--{name}:{colour};" for name, colour, _ in COLOURS.values())
    dark = "".join(f"--{name}:{colour};" for name, _, colour in COLOURS.values())
    for colour, (name, _, _) in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    label = ".edgeLabel .background{fill:var(--paper)!important;opacity:1!important}"
    style = f"<style>svg{{{light}}}@media (prefers-color-scheme:dark){{svg{{{dark}}}}}{label}</style>"
    return re.sub(r"(<svg[^>]*>)", lambda match: match[1] + style, svg, count=1)


def main(mermaid: str) -> None:
    """Draw what is missing, and remove what no page has any more."""
    from playwright.sync_api import sync_playwright

    wanted = drawings()
    for path in DRAWINGS.glob("*.svg"):
        if path.stem not in wanted:
            path.unlink()
    DRAWINGS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(path=mermaid)
        for name, text in wanted.items():
            svg = page.evaluate(PROGRAM, [name, text, VARIABLES])
            (DRAWINGS / f"{name}.svg").write_text(coloured(svg) + "\n")
            print(f"{title_of(text)}: {name}.svg")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
