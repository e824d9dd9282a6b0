"""On a phone, in the dark, by keyboard, and for those who listen."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

import api
from tests.api.conftest import Service
from tests.api.page.conftest import Visit
from tests.api.page.runs import train
from tests.api.page.sweep import shown, tuned

Enter = Callable[..., Visit]
STYLE = (Path(api.__file__).parent / "page" / "style.css").read_text()
PHONE = {"viewport": {"width": 375, "height": 700}, "is_mobile": True, "has_touch": True}
LOOKS = [
    pytest.param({"color_scheme": "light"}, id="light"),
    pytest.param({"color_scheme": "dark"}, id="dark", marks=pytest.mark.long),
    pytest.param(PHONE, id="phone", marks=pytest.mark.long),
]
VIEWS = ("jobs", "jobs/{job}", "compare", "sweeps", "sweeps/sweep-1", "cluster", "plan", "new", "nowhere")
WCAG_AA = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], "resultTypes": ["violations"]}


def submitted(service: Service) -> str:
    """A job with a long name and long labels."""
    job = service.client.submit({"name": "n" * 63, "labels": {"k" * 63: "v" * 200}})
    train(service.started(job.id), 2)
    return job.id


def test_on_a_phone_nothing_is_wider_than_the_screen(service: Service, visit: Enter) -> None:
    job = submitted(service)
    one = visit(**PHONE)
    one.answer("**/v1/sweeps/sweep-2", tuned()[0])
    one.answer("**/v1/sweeps/sweep-2/report*", tuned()[1])
    page = one.go()
    for view in (*VIEWS, "sweeps/sweep-2"):
        page.goto(f"{service.url}/#/{view.format(job=job)}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, view
    for view in ("jobs", "compare"):  # what a finger is to hit
        page.goto(f"{service.url}/#/{view}")
        target = page.locator(".pick label").first.bounding_box()
        assert target is not None
        assert min(target["width"], target["height"]) >= 44, view
    page.goto(f"{service.url}/#/jobs/{job}")
    small = (
        "(nodes) => nodes.filter((node) => node.offsetParent && node.offsetHeight < 24).map((node) => node.textContent)"
    )
    assert page.locator("main button").evaluate_all(small) == []
    expect(page.get_by_role("figure", name="Loss").locator("canvas")).to_be_visible()
    assert page.get_by_role("figure", name="Loss").locator("canvas").bounding_box()["width"] > 300  # type: ignore[index]


def test_by_keyboard_alone(service: Service, visit: Enter) -> None:
    first, second = (service.client.submit({"name": name}).id for name in ("first", "second"))
    page = visit().go()
    expect(page.get_by_role("row")).to_have_count(3)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    focused = page.locator(":focus")
    expect(focused).to_have_text("first")
    assert focused.evaluate("(node) => getComputedStyle(node).outlineStyle") == "solid"
    page.keyboard.press(" ")
    expect(page.get_by_label("Compare first")).to_be_checked()
    page.keyboard.press("ArrowUp")
    expect(focused).to_have_text("second")
    page.wait_for_timeout(2500)  # the list has been read again meanwhile
    expect(focused).to_have_text("second")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("second")
    for key, title in (
        ("s", "Sweeps"),
        ("c", "Cluster"),
        ("o", "Compare"),
        ("m", "Models"),
        ("p", "Plan"),
        ("n", "New"),
        ("j", "Jobs"),
    ):
        page.keyboard.press(key)
        expect(page.get_by_role("heading", level=1)).to_have_text(title)
    page.keyboard.press("/")
    expect(page.get_by_label("Search", exact=True)).to_be_focused()
    page.keyboard.type("snj")
    expect(page.get_by_label("Search", exact=True)).to_have_value("snj")
    for name in ("State", "Label", "archived"):  # the list that was filtered meanwhile keeps the focus where it was
        page.keyboard.press("Tab")
        expect(page.get_by_label(name, exact=True)).to_be_focused()
    expect(page).to_have_url(re.compile("name=snj"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.goto(f"{service.url}/#/jobs/{first}")
    page.reload()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert page.url.endswith(first)
    assert second in [job.id for job in service.client.list()]


@pytest.mark.parametrize("looks", LOOKS)
def test_axe_finds_nothing_against_wcag_aa(service: Service, visit: Enter, looks: dict[str, Any]) -> None:
    """Each view, with something to look at: names for everything, contrast, headings, landmarks, what roles need."""
    job, one, (sweep, report) = submitted(service), visit(**looks), shown(seeds=1)
    one.answer("**/v1/sweeps?*", {"sweeps": [sweep], "next_page_token": None})
    one.answer("**/v1/sweeps/sweep-1", sweep)
    one.answer("**/v1/sweeps/sweep-1/report*", report)
    one.answer("**/v1/sweeps/sweep-2", tuned()[0])
    one.answer("**/v1/sweeps/sweep-2/report*", tuned()[1])
    page = one.go()
    for view in (*VIEWS, "sweeps/sweep-2"):
        page.goto(f"{service.url}/#/{view.format(job=job)}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        page.wait_for_load_state("networkidle")
        found = Axe().run(page, options=WCAG_AA).response["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == [], view
        assert page.get_by_role("main").count() == page.get_by_role("navigation").count() == 1
    assert page.locator("[role=status][aria-live=polite]").count() == 1


def test_a_list_that_scrolls_by_itself_says_so_until_its_end(service: Service, visit: Enter) -> None:
    one, (sweep, report) = visit(**PHONE), shown()
    one.answer("**/v1/sweeps/sweep-1", sweep)
    one.answer("**/v1/sweeps/sweep-1/report*", report)
    page = one.go("sweeps/sweep-1")
    opacity = "(node) => Number(getComputedStyle(node, '::after').opacity)"
    trials = page.get_by_role("region", name="Trials")
    expect(trials.get_by_role("row")).to_have_count(39)
    assert trials.evaluate(opacity) == 1
    trials.evaluate("(node) => node.scrollTo(0, node.scrollHeight)")
    page.wait_for_function("(node) => getComputedStyle(node, '::after').opacity === '0'", arg=trials.element_handle())
    assert page.get_by_role("region", name="Heat map").evaluate(opacity) == 0  # it is all there


def test_in_the_dark_the_page_is_dark(service: Service, visit: Enter) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        page = visit(color_scheme=scheme).go()
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        grounds[scheme] = sum(map(int, re.findall(r"\d+", ground)))
    assert grounds["light"] > 650
    assert grounds["dark"] < 120


def luminance(colour: str) -> float:
    """Relative, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_told_from_its_ground(scheme: str) -> None:
    """WCAG 2.1: 4.5 for text, 3 for what is drawn."""
    block = STYLE.split(":root {")[1 if scheme == "light" else 2].split("}")[0]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block))

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(colours[one]), luminance(colours[other])))
        return (high + 0.05) / (low + 0.05)

    for ground in ("panel", "ground"):
        for text in ("text", "faint", "accent", "good", "bad", "busy", "rest"):
            assert contrast(text, ground) >= 4.5, (text, ground)
    for drawn in ("fault", "resize", *(f"line-{i}" for i in range(1, 9))):
        assert contrast(drawn, "panel") >= 3, drawn
    assert contrast("on-accent", "accent") >= 4.5
    assert min(contrast("text", "hot"), contrast("text", "cool")) >= 4.5
