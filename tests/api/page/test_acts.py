"""What can be done on the page: a job's verbs, and the form for specs."""

import re
from collections.abc import Callable

from playwright.sync_api import Route, expect

from tests.api.conftest import Service, eventually
from tests.api.page.conftest import Visit
from tests.api.page.runs import train
from trainers.events import State

Enter = Callable[..., Visit]


def test_a_job_is_cancelled_when_one_is_sure(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first"})
    run = service.started(job.id)
    train(run, 1)
    page = visit().go(f"jobs/{job.id}")
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    cancel.click()
    expect(page.get_by_role("dialog", name="Cancel the job?")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(cancel).to_be_focused()
    assert run.cancels == 0
    cancel.click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".badge").first).to_have_text("CANCELLING")
    assert run.cancels == 1
    run.state(State.CANCELLED, "Cancelled", "stopped with a checkpoint")
    expect(page.locator(".badge").first).to_have_text("CANCELLED")
    expect(cancel).to_be_disabled()


def test_what_the_service_refuses_is_said_in_its_words(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first"})
    service.started(job.id).state(State.RUNNING)
    one = visit()
    told = "job <b>first</b> has no checkpoint yet; wait for the end of its first epoch"
    for verb in ("pause", "fork", "scale"):
        one.answer(f"**/{verb}*", {"status": 409, "detail": told}, status=409, kind="application/problem+json")
    page = one.go(f"jobs/{job.id}")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#refusal")).to_have_text(told)
    expect(page.get_by_role("button", name="Resume")).to_be_disabled()
    for button in ("Scale", "Fork"):
        page.get_by_role("button", name=button, exact=True).click()
        box = page.get_by_role("dialog")
        box.get_by_role("button", name=button, exact=True).click()
        expect(box.get_by_role("alert")).to_have_text(told)
        box.get_by_role("button", name="Close").click()


def test_scaling_sends_the_number(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first", "workers": 2})
    service.started(job.id).state(State.RUNNING)
    one = visit()
    one.answer("**/scale", service.http.get(f"/v1/jobs/{job.id}").json(), status=202)
    page = one.go(f"jobs/{job.id}")
    page.get_by_role("button", name="Scale").click()
    page.get_by_role("spinbutton", name="Workers").fill("3")
    with page.expect_request("**/scale") as sent:
        page.get_by_role("dialog").get_by_role("button", name="Scale").click()
    assert sent.value.post_data_json == {"workers": 3}
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_nothing_can_be_done_with_a_job_before_the_page_knows_it(service: Service, visit: Enter) -> None:
    job, held = service.client.submit({"name": "first"}), list[Route]()

    def hold(route: Route) -> None:
        held.append(route)

    one = visit()
    one.page.route(f"**/v1/jobs/{job.id}", hold)
    page = one.go(f"jobs/{job.id}")
    for name in ("Pause", "Resume", "Scale", "Cancel", "Fork"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    for route in held:
        route.continue_()
    expect(page.get_by_role("button", name="Fork")).to_be_enabled()


def test_a_spec_is_checked_while_it_is_written_and_submitted_once(service: Service, visit: Enter) -> None:
    page = visit().go("new")
    field = page.get_by_label("Spec, as YAML or JSON")
    verdict = page.locator(".verdict")
    expect(verdict).to_have_text("Good: downpour, mlp on digits, 2 workers, 20 epochs.")
    field.fill("name: from-the-page\nworkers: two\nalgorithm:\n  name: downpour\n  num_push: 0\n")
    expect(verdict).to_have_text("2 things are wrong.")
    problems = page.locator(".problems li")
    expect(problems.nth(0)).to_contain_text(re.compile("line 2/workers/count"))
    expect(problems.nth(1)).to_contain_text(re.compile("line 5/algorithm/num_push"))
    expect(page.locator(".line.wrong .of")).to_have_text(["workers: two", "  num_push: 0"])
    expect(field).to_have_attribute("aria-invalid", "true")
    problems.nth(1).get_by_role("button").click()
    page.keyboard.type("  num_push: 4")
    expect(verdict).to_have_text("One thing is wrong.")
    field.fill("name: [1")
    expect(problems).to_contain_text("not valid YAML")
    field.fill('{"workers": 1000}')
    expect(problems).to_contain_text("the cluster has 4")
    page.get_by_role("button", name="Submit").click()
    expect(problems).to_contain_text("the cluster has 4")
    field.fill('{"name": "from-the-page", "epochs": 3}')
    expect(verdict).to_have_text("Good: sync, lenet5 on digits, 2 workers, 3 epochs.")
    field.focus()
    page.keyboard.press("Control+Enter")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("from-the-page")
    (job,) = service.client.list()
    assert page.url.endswith(f"#/jobs/{job.id}")
    assert service.client.get(job.id).spec.epochs == 3


def test_the_form_begins_with_any_algorithm(service: Service, visit: Enter) -> None:
    page = visit().go("new")
    start = page.get_by_label("Begin with")
    names = {entry["name"] for entry in service.http.get("/v1/algorithms").json()}
    eventually(lambda: start.locator("option").count() == len(names) + 1)
    for name in sorted(names):
        start.select_option(name)
        expect(page.locator(".verdict")).to_contain_text(re.compile(f"Good: {name},"))
    start.select_option("sweep")
    expect(page.locator(".verdict")).to_contain_text("Good: 10 trials of sync")


def test_a_new_line_keeps_the_indent_and_tab_leaves_the_field(service: Service, visit: Enter) -> None:
    page = visit().go("new")
    field = page.get_by_label("Spec, as YAML or JSON")
    field.fill("")
    field.press_sequentially("algorithm:\nname: sync\nform: all_reduce")
    assert field.input_value() == "algorithm:\n  name: sync\n  form: all_reduce"
    field.press("Tab")
    expect(field).not_to_be_focused()
