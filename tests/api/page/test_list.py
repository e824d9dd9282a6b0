"""The list of jobs: its columns, their order, what is looked for, views that are kept, and sweeps that open."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.api.conftest import Service
from tests.api.page.conftest import Visit
from tests.api.page.sweep import shown
from trainers.events import State

Enter = Callable[..., Visit]


def _names(page: Page) -> list[str]:
    return page.locator("tbody .named a").all_inner_texts()


def test_columns_are_chosen_and_stay_chosen(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first", "workers": 2, "epochs": 4})
    run = service.started(job.id)
    run.state(State.RUNNING, "Training", "two workers train")
    for epoch, accuracy in enumerate((0.5, 0.7, 0.9), 1):
        run.step(float(epoch))
        run.evaluation(float(epoch), accuracy)
    page = visit().go()
    curve = page.get_by_role("img", name="Accuracy from 50.0 % to 90.0 %")
    expect(curve).to_be_visible()
    page.locator("summary", has_text="Columns").click()
    for name in ("Workers", "Examples/s", "Test loss", "User"):
        page.get_by_label(f"Column {name}", exact=True).check()
    page.get_by_label("Column Curve", exact=True).uncheck()
    head = page.get_by_role("columnheader")
    titles = ["Chosen", "Job", "State", "Progress", "Metric", "Examples/s", "Workers", "Algorithm", "User", "Created"]
    expect(head).to_have_text([*titles, "Test loss"])
    row = page.get_by_role("row", name="first")
    expect(row.get_by_role("cell", name="0.2", exact=True)).to_be_visible()
    expect(row.get_by_role("cell", name="500", exact=True)).to_be_visible()
    expect(curve).to_have_count(0)
    expect(page).to_have_url(re.compile("columns=state"))
    page.goto(f"{service.url}/#/cluster")
    page.goto(f"{service.url}/#/jobs")
    expect(head).to_have_text([*titles, "Test loss"])


def test_rows_are_sorted_by_any_column(service: Service, visit: Enter) -> None:
    for name, workers in (("a", 2), ("b", 4), ("c", 3)):
        service.client.submit({"name": name, "workers": workers, "priority": 1})
    page = visit().go("jobs?columns=workers,priority,metric")
    expect(page.locator("tbody tr")).to_have_count(3)
    assert _names(page) == ["c", "b", "a"]
    page.get_by_role("button", name="Workers").click()
    expect(page.get_by_role("columnheader", name="Workers")).to_have_attribute("aria-sort", "ascending")
    assert _names(page) == ["a", "c", "b"]
    page.get_by_role("button", name="Workers").press("Enter")
    expect(page.get_by_role("columnheader", name="Workers")).to_have_attribute("aria-sort", "descending")
    assert _names(page) == ["b", "c", "a"]
    expect(page).to_have_url(re.compile("sort=-workers"))
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(3)
    assert _names(page) == ["b", "c", "a"]


def test_what_is_looked_for_is_kept_as_a_view(service: Service, visit: Enter) -> None:
    for name, algorithm in (("conv", "sync"), ("conv-late", "downpour"), ("other", "downpour")):
        service.client.submit({"name": name, "algorithm": algorithm})
    page = visit().go()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(page.get_by_role("button", name="Keep view")).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("algorithm:downpour conv")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    expect(page.get_by_label("Search")).to_have_value("conv algorithm:downpour")
    page.get_by_role("button", name="Keep view").click()
    page.get_by_label("Name of the view").fill("late ones")
    page.get_by_role("button", name="Keep", exact=True).click()
    view = page.get_by_label("View", exact=True)
    expect(view).to_have_value("late ones")
    view.select_option("all jobs")
    expect(rows).to_have_count(3)
    view.select_option("late ones")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Forget view").click()
    expect(view.get_by_role("option", name="late ones")).to_have_count(0)


def test_a_sweep_is_one_row_that_opens(service: Service, visit: Enter) -> None:
    sweep, _ = shown()
    trials = [service.client.submit({"name": f"trial-{n}"}).id for n in range(2)]
    jobs = {job["id"]: job for job in service.http.get("/v1/jobs").json()["jobs"]}
    one = visit()
    one.answer("**/v1/jobs?*trials=false*", {"jobs": [], "next_page_token": None})
    one.answer("**/v1/jobs?label=*", {"jobs": [jobs[trial] for trial in trials], "next_page_token": None})
    one.answer("**/v1/sweeps?*", {"sweeps": [sweep], "next_page_token": None})
    page = one.go()
    row = page.get_by_role("row", name="how-large")
    expect(row).to_contain_text("sweep of 39 trials")
    expect(row).to_contain_text("75 %")
    expect(page.locator("tbody tr")).to_have_count(1)
    opener = page.get_by_role("button", name="Trials of how-large")
    opener.click()
    expect(page.locator("tbody tr")).to_have_count(3)
    assert _names(page) == ["how-large", "trial-0", "trial-1"]
    expect(opener).to_have_attribute("aria-expanded", "true")
    page.get_by_label("Compare trial-0").check()
    page.get_by_label("Compare trial-1").check()
    expect(page.get_by_role("link", name="Compare 2")).to_have_attribute("href", f"#/compare?jobs={','.join(trials)}")
    opener.click()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_an_address_that_names_no_column_shows_the_others(service: Service, visit: Enter) -> None:
    service.client.submit({"name": "first"})
    page = visit().go("jobs?columns=state,nonsense,__proto__&sort=constructor")
    expect(page.get_by_role("columnheader")).to_have_text(["Chosen", "Job", "State"])
    expect(page.get_by_role("row", name="first")).to_be_visible()
