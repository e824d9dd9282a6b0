"""The view of plans, the predicted rate of a new job, and what was predicted of a job beside what is measured."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.api.conftest import Service
from tests.api.page.conftest import Visit
from tests.api.page.runs import train
from tests.api.page.test_everywhere import LOOKS, WCAG_AA
from tests.cost.test_planning import profile_of
from trainers.cost.plan import Timed
from trainers.spec import TrainSpec

Enter = Callable[..., Visit]

MIXED = """algorithm: {name: mixed, group: 2}
workers: 8
data: digits
model: mlp
batch: 32
optimizer: momentum
"""


@pytest.fixture
def kept(service: Service, tmp_path: Path) -> Service:
    """A service that keeps a profile of the minibatch of new jobs and of the view of plans."""
    folder = tmp_path / "runs" / "profiles"
    folder.mkdir(parents=True)
    uneven = {"forward": Timed(median_s=0.01, spread_s=0.001), "backward": Timed(median_s=0.02, spread_s=0.003)}
    for number, optimizer in enumerate(("adagrad", "momentum")):
        spec = TrainSpec.model_validate({"data": "digits", "model": "mlp", "batch": 32, "optimizer": optimizer})
        (folder / f"{number}.json").write_text(profile_of(spec, **uneven).model_dump_json())
    return service


FIRST_PLAN_MS = 180_000
"""Of a service: a process that plans imports torch first, which took a minute where two suites ran at once."""


def look(page: Page, name: str) -> None:
    """Keep a picture, where somebody wants to look at it."""
    if folder := os.environ.get("MILLRACE_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


@pytest.mark.parametrize("looks", LOOKS)
def test_a_plan_and_what_it_looks_like(kept: Service, visit: Enter, looks: dict[str, Any]) -> None:
    page = visit(**looks).go("plan")
    page.get_by_label("cluster").fill("")
    page.get_by_label("workers", exact=True).fill("1..40")
    page.get_by_label("other algorithms").check()
    page.get_by_label("price").fill("0.4")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("status").filter(has_text="Recommended: ")).to_be_visible(timeout=FIRST_PLAN_MS)
    expect(page.get_by_role("figure", name="Speed-up").locator("canvas")).to_be_visible()
    rows = page.get_by_role("region", name="A step, part by part").get_by_role("row")
    assert rows.count() > 4
    widths = page.locator(".stack").last.locator("span").evaluate_all("(all) => all.map((one) => one.offsetWidth)")
    assert sum(widths) <= page.locator(".stack").last.evaluate("(one) => one.offsetWidth") + len(widths)
    assert max(widths) > 10
    expect(page.get_by_text("(T + tau)/tau")).to_be_visible()
    expect(page.get_by_role("region", name="What else it could be").get_by_role("row").nth(2)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    look(page, f"plan-{looks.get('color_scheme', 'phone')}")
    found = Axe().run(page, options=WCAG_AA).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == []


@pytest.mark.parametrize("looks", LOOKS)
def test_a_simulated_step_and_what_it_looks_like(kept: Service, visit: Enter, looks: dict[str, Any]) -> None:
    """Of groups that wait for their slowest, and go on by themselves: all that a simulation tells."""
    page = visit(**looks).go("plan")
    editor = page.get_by_label("Spec, as YAML or JSON")
    editor.fill(MIXED)
    page.get_by_label("cluster").fill("")
    page.get_by_label("workers", exact=True).fill("4,8")
    page.get_by_label("simulate it").check()
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("heading", name="A step, event by event")).to_be_visible()
    rows = page.get_by_role("region", name="A step, event by event").get_by_role("row")
    expect(rows.filter(has_text="group 1")).to_be_visible()
    expect(rows.filter(has_text="the fullest shard")).to_be_visible()
    bars = page.locator(".gantt").first.locator("span")
    whole = page.locator(".gantt").first.evaluate("(one) => one.offsetWidth")
    ends = bars.evaluate_all("(all) => all.map((one) => one.offsetLeft + one.offsetWidth)")
    assert len(ends) >= 3
    assert ends == sorted(ends)
    assert 0.5 * whole < ends[-1] <= whole + 1
    expect(page.get_by_text("2 workers", exact=True)).to_be_visible()
    expect(page.get_by_role("figure", name="the slowest is later").locator("canvas")).to_be_visible()
    expect(page.get_by_role("figure", name="so many updates behind").locator("canvas")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    look(page, f"simulated-{looks.get('color_scheme', 'phone')}")
    found = Axe().run(page, options=WCAG_AA).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == []
    editor.fill(MIXED.replace("{name: mixed, group: 2}", "sync"))
    page.get_by_role("button", name="Plan").click()
    expect(rows.filter(has_text="links")).to_be_visible()
    expect(page.get_by_role("heading", name="Staleness")).to_have_count(0)
    page.get_by_label("simulate it").uncheck()
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("heading", name="A step, event by event")).to_have_count(0)


def test_a_described_cluster_and_a_wrong_one(service: Service, visit: Enter) -> None:
    page = visit().go("plan")
    page.get_by_label("cluster").fill("cray")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("listitem").filter(has_text="no cluster has this name")).to_be_visible()
    described = """name: mine
device: {name: one, flops: 1 TFLOP/s}
links: {net: {latency: 10 us, bandwidth: 1 GB/s}}
switches: [{devices: 1, count: 16}]
between: net"""
    page.get_by_label("cluster").fill(described)
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_text("mine (one)")).to_be_visible()


def test_a_job_is_planned_further(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first", "workers": 3})
    page = visit().go(f"jobs/{job.id}")
    page.get_by_role("link", name="Plan more workers").click()
    expect(page.get_by_label("Spec, as YAML or JSON")).to_have_value(re.compile('"count": 3'))
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("status").filter(has_text="Recommended: ")).to_be_visible(timeout=FIRST_PLAN_MS)


def test_the_form_tells_the_rate_while_one_types(kept: Service, visit: Enter) -> None:
    page = visit().go("new")
    expect(page.get_by_text("examples a second, nine runs of ten between")).to_be_visible()
    look(page, "new")
    editor = page.get_by_label("Spec, as YAML or JSON")
    editor.fill(editor.input_value().replace("batch: 32", "batch: 31"))
    expect(page.get_by_text("the service keeps no profile of this minibatch")).to_be_visible()


def test_a_job_is_held_against_its_prediction(kept: Service, visit: Enter) -> None:
    job = kept.client.submit({"data": "digits", "model": "mlp", "batch": 32, "optimizer": "momentum"})
    train(kept.started(job.id), 3)
    page = visit().go(f"jobs/{job.id}")
    expect(page.get_by_role("heading", name="Predicted and measured")).to_be_visible()
    expect(page.get_by_text("Furthest off: ")).to_be_visible()
    rows = page.get_by_role("region", name="Predicted and measured").get_by_role("row")
    expect(rows).to_have_count(4)
    look(page, "job")
    found = Axe().run(page, options=WCAG_AA).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == []
