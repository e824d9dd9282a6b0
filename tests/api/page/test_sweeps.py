"""What the page shows of sweeps."""

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Route, expect

from service import scaling_report
from service.scaling.metric import Metric
from tests.api.conftest import Service
from tests.api.page.conftest import Visit
from tests.api.page.sweep import shown, tuned
from tests.service.scaling.synthetic import sweep as synthetic

Enter = Callable[..., Visit]


def test_a_sweep_as_error_against_batch_heat_map_and_table(service: Service, visit: Enter) -> None:
    sweep, report = shown()
    one = visit()
    one.answer("**/v1/sweeps?*", {"sweeps": [sweep], "next_page_token": None})
    one.answer("**/v1/sweeps/sweep-1", sweep)
    one.answer("**/v1/sweeps/sweep-1/report", report)
    one.answer("**/v1/sweeps/sweep-1/pause", {"detail": "not now"}, status=409)
    page = one.go("sweeps")
    expect(page.get_by_role("row", name="how-large")).to_contain_text("39 of 39 succeeded")
    page.get_by_role("link", name="how-large").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("how-large")
    first = page.locator(".answer li").first
    expect(first.locator("strong")).to_have_text(re.compile(r"^The baseline, batch 64 .*seeds\)\.$"))
    expect(first.locator("p")).to_have_text([re.compile(r"^As good as that is .*points\.$")])
    expect(page.locator(".needs")).to_have_text(re.compile("Resume: for a sweep that is paused"))
    expect(page.get_by_text("39 of 39 trials succeeded")).to_be_visible()
    figure = page.get_by_role("figure", name="Test error against batch size")
    expect(figure.locator("canvas")).to_be_visible()
    expect(figure.get_by_role("listitem")).to_have_count(4)
    heat = page.get_by_role("region", name="Heat map")
    expect(heat.get_by_role("columnheader")).to_have_text(
        ["Rule for the learning rate", "batch 64", "batch 256", "batch 1,024", "batch 4,096"]
    )
    expect(heat.get_by_role("row", name="linear, gradual warm-up")).to_contain_text(re.compile(r"\d\.\d\d %"))
    ground = "(node) => getComputedStyle(node).backgroundColor"
    linear = heat.get_by_role("row", name="linear, gradual warm-up").get_by_role("cell")
    assert linear.nth(1).evaluate(ground) != linear.nth(3).evaluate(ground)
    light = linear.nth(1).evaluate(ground)
    page.emulate_media(color_scheme="dark")  # it follows the system while it is open
    assert linear.nth(1).evaluate(ground) != light
    trials = page.get_by_role("region", name="Trials").get_by_role("row")
    expect(trials).to_have_count(40)
    expect(trials.nth(1)).to_contain_text(re.compile(r"trial 0.*64.*none.*SUCCEEDED.*100 %.*\d+\.\d\d %"))
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#refusal")).to_have_text("not now")
    expect(page.get_by_role("button", name="Resume")).to_be_disabled()


def test_a_sweep_by_another_metric(service: Service, visit: Enter) -> None:
    """Of r2 more is better: what is shown is what the task measures."""
    sweep, _ = shown()
    compares = {"name": "r2", "higher_is_better": True}
    for trial in sweep["results"]:
        trial.update(error=None, value=1 - trial["error"])
    found = synthetic([64, 256, 1024, 4096], seeds=3, points=20)
    trials = tuple(trial.model_copy(update={"error": (trial.error or 0.0) - 1}) for trial in found.trials)
    question = found.question.model_copy(update={"metric": Metric.model_validate(compares)})
    report = scaling_report(found.model_copy(update={"trials": trials, "question": question}))
    one = visit()
    one.answer("**/v1/sweeps/sweep-1", sweep | {"metric": compares})
    one.answer("**/v1/sweeps/sweep-1/report", report.model_dump_json())
    page = one.go("sweeps/sweep-1")
    expect(page.get_by_role("figure", name="Test r2 against batch size").locator("canvas")).to_be_visible()
    expect(page.get_by_role("heading", name="Test r2 by method and batch")).to_be_visible()
    trials_shown = page.get_by_role("region", name="Trials")
    expect(trials_shown.get_by_role("columnheader", name="Test r2")).to_be_visible()
    expect(trials_shown.get_by_role("row").nth(1)).to_contain_text(re.compile(r"0\.\d{3,4}"))
    expect(page.get_by_role("region", name="Heat map").get_by_role("cell").first).to_contain_text(re.compile(r"0\.\d+"))
    expect(page.locator("main")).not_to_contain_text(re.compile("error|accuracy", re.IGNORECASE))


def test_the_trials_of_a_sweep_are_compared(service: Service, visit: Enter) -> None:
    sweep, _ = shown(seeds=1)
    one = visit()
    sweep["metric"] = {"name": "error", "higher_is_better": False, "measured_on": "validation"}
    one.answer("**/v1/sweeps/sweep-1", sweep)
    line = {"name": "loss", "x": "epoch", "points": [[i / 10, 1 / i] for i in range(1, 20)], "total": 19}
    one.answer("**/v1/metrics?*", {"lines": [line] * 12 + [None]})  # the last is gone
    page = one.go("compare?sweep=sweep-1")
    table = page.get_by_role("region", name="Runs")
    expect(table.locator("tbody tr")).to_have_count(13)
    heads = ["Shown", "Run", "Training loss last", "State", "Validation error", "batch", "rule", "warmup"]
    expect(table.get_by_role("columnheader")).to_have_text(heads)
    expect(table.locator("tbody tr").nth(2)).to_contain_text("1024nonenone")
    options = page.get_by_label("Figure").get_by_role("option")
    expect(options.nth(1)).to_have_text("Validation accuracy")
    expect(options.nth(2)).to_have_text("Test loss")
    expect(page.locator("canvas")).to_be_visible()


def test_a_sweep_that_varies_no_batch_as_best_trials_importance_and_lines(service: Service, visit: Enter) -> None:
    sweep, report = tuned()
    one = visit()
    one.answer("**/v1/sweeps/sweep-2", sweep)
    one.answer("**/v1/sweeps/sweep-2/report", report)
    page = one.go("sweeps/sweep-2")
    expect(page.locator(".answer li").first).to_contain_text("The best settings are optimizer.lr 0.1")
    expect(page.locator("main")).to_contain_text(re.compile(r"The best trials: trial \d+, trial \d+"))
    matters = page.get_by_role("region", name="How much each axis matters").get_by_role("row")
    expect(matters.nth(1)).to_contain_text(re.compile(r"optimizer\.lr\s*\d+ %"))
    lines = page.get_by_role("img", name="Parallel coordinates of Test error").locator("path")
    expect(lines).to_have_count(16)
    lines.last.dispatch_event("pointerenter")  # the best is above the others
    expect(page.locator("figcaption")).to_contain_text("optimizer.lr 0.1, optimizer.name momentum")
    expect(page.locator("main")).not_to_contain_text("baseline")


def test_a_sweep_is_changed_and_archived(service: Service, visit: Enter) -> None:
    sweep, report = tuned()
    one, sent = visit(), list[Any]()
    one.answer("**/v1/sweeps/sweep-2/report", report)

    def answered(route: Route) -> None:
        if route.request.method == "PATCH":
            sent.append(route.request.post_data_json)
            for name, value in sent[-1].items():
                sweep[name] = {"mine": "yes"} if name == "labels" else value
        route.fulfill(json=sweep)

    one.page.route("**/v1/sweeps/sweep-2", answered)
    page = one.go("sweeps/sweep-2")
    expect(page.locator("main")).to_contain_text("team=blue")
    page.get_by_role("button", name="Edit").click()
    box = page.get_by_role("dialog")
    expect(box.get_by_label("Priority")).to_have_count(0)  # it has ended
    box.get_by_label("Name").fill("renamed")
    box.get_by_label("Labels").fill("mine=yes")
    box.get_by_label("Notes").fill("the second\ntry")
    box.get_by_role("button", name="Change").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("renamed")
    expect(page.locator(".notes")).to_have_text("the second\ntry")
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("button", name="Bring back")).to_be_visible()
    wanted = {"name": "renamed", "notes": "the second\ntry", "labels": {"mine": "yes", "team": None}}
    assert sent == [wanted, {"archived": True}]
    one.answer("**/v1/sweeps?*", {"sweeps": [], "next_page_token": None})
    page = one.go("sweeps")
    page.get_by_label("archived").check()
    expect(page.get_by_text("No sweeps match these filters.")).to_be_visible()
    assert any("archived=true" in url for url in one.asked)
