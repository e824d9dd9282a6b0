"""The pictures of the guide, from real runs:

    python -m tests.docs.pictures

A service of its own trains the demo, one of whose workers is killed on the way, jobs that are compared, and a sweep;
then Chromium visits its page. On two cores this takes some minutes. Whoever changes how the page looks takes them anew,
and looks at each before it is committed.
"""

import io
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from api import Client
from tests.api.page.conftest import Visit, chromium, find_chromium
from tests.docs.readme import DOCS, Place, serving

IMAGES = DOCS / "images"
SETTLED_MS = 500
"""So long after what it waited for a view has drawn its charts."""
KILLED_AT = 20
"""Epoch of the demo after which a worker is killed."""
COMPARED = {
    "algorithm": "sync", "data": "digits", "model": "mlp", "workers": 1, "epochs": 15, "batch": 32,
    "report_every_s": 0.05,
}  # fmt: skip
WRONG = "name: first\nalgorithm:\n  name: downpour\n  num_push: 0\nworkers: two\ndata: digits\nmodel: mlp\nepochs: 20\n"


@dataclass(frozen=True)
class Trained:
    """What there is to look at, by id."""

    demo: str
    compared: list[str]
    sweep: str


def train(client: Client, examples: Path) -> Trained:
    """Run all of it, one after the other, to its end."""
    demo = train_demo(client, examples / "digits-downpour.yaml")
    rates = {0.02: "red", 0.005: "blue"}
    compared = [
        client.submit(
            COMPARED | {
                "name": f"digits-{seed + 3 * number}", "seed": seed, "labels": {"team": team},
                "optimizer": {"name": "momentum", "lr": rate, "momentum": 0.9},
            }
        ).id
        for number, (rate, team) in enumerate(rates.items())
        for seed in range(3)
    ]  # fmt: skip
    for job_id in compared:
        expect_success(client.wait(job_id))
    asked = yaml.safe_load((examples / "scaling-rules-small.yaml").read_text())
    asked["axes"] |= {"batch": [8, 32, 128, 512], "rule": ["none", "linear"]}
    sweep = client.sweep(asked).id
    for _ in client.sweep_events(sweep):
        pass
    expect_success(client.get_sweep(sweep))
    return Trained(demo, compared, sweep)


def train_demo(client: Client, spec: Path) -> str:
    """With a larger network, so that there is time to lose a worker."""
    optimizer = {"name": "momentum", "lr": 0.005, "momentum": 0.9}
    more = {"model": "lenet5", "epochs": 60, "optimizer": optimizer, "labels": {"team": "blue"}, "report_every_s": 0.25}
    demo = client.submit(yaml.safe_load(spec.read_text()) | more).id
    workers: list[dict[str, Any]] = []
    for event in client.events(demo):
        if event.type == "actors":
            workers = event.data["workers"]
        if event.type == "epoch" and event.data["epoch"] == KILLED_AT:
            os.kill(workers[1]["pid"], signal.SIGKILL)
    expect_success(client.get(demo))
    return demo


def expect_success(ended: Any) -> None:
    """A picture of what has failed would show nobody anything."""
    if ended.state != "SUCCEEDED":
        raise SystemExit(f"{ended.name} is {ended.state}: {ended.message}")


def open_view(browser: Browser, url: str, path: str, width: int, height: int, **looks: Any) -> Page:
    """A view, on a screen of its own."""
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce", **looks)
    page = Visit(context.new_page(), url).go(path)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    return page


def keep(page: Page, name: str) -> None:
    """As a file of the guide, of so many colours that it stays small."""
    page.wait_for_timeout(SETTLED_MS)
    with Image.open(io.BytesIO(page.screenshot())) as taken:
        taken.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
    page.context.close()


def photograph(browser: Browser, url: str, trained: Trained) -> None:
    """All pictures."""
    page = open_view(browser, url, f"jobs/{trained.demo}", 1280, 1105)
    expect(page.get_by_role("figure", name="Staleness").locator("canvas")).to_be_visible()
    keep(page, "job")

    page = open_view(browser, url, f"compare?jobs={','.join(trained.compared)}", 1300, 1000)
    expect(page.locator("canvas")).to_be_visible()
    page.wait_for_timeout(SETTLED_MS)
    page.locator(".u-over").hover()  # in the middle of the chart, so that the table tells the values there
    keep(page, "compare")

    page = open_view(browser, url, f"sweeps/{trained.sweep}", 1280, 1130, color_scheme="dark")
    expect(page.locator(".heat")).to_be_visible()
    keep(page, "sweep-dark")

    phone = {"is_mobile": True, "has_touch": True, "device_scale_factor": 2, "color_scheme": "dark"}
    page = open_view(browser, url, "new", 390, 780, **phone)
    page.get_by_label("Spec, as YAML or JSON").fill(WRONG)
    expect(page.locator(".verdict")).to_have_text("2 things are wrong.")
    page.locator(":focus").blur()
    keep(page, "phone")


def main() -> int:
    """Exit status 2 where there is no browser."""
    program = find_chromium()
    if program is None:
        print("needs Chromium: the Debian package `chromium`", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        place = Place(Path(folder))
        url = f"http://127.0.0.1:{place.port}"
        with serving(place, "quick-start"):
            with Client(url, token="") as client:
                trained = train(client, place.folder / "examples")
            with chromium(program) as browser:
                photograph(browser, url, trained)
    return 0


if __name__ == "__main__":
    sys.exit(main())
