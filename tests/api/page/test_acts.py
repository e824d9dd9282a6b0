"""What can be done on the page: a job's verbs, and the form for specs."""

import gzip
import json
import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Route, expect

from tests.api.conftest import Service, eventually
from tests.api.page.conftest import Visit
from tests.api.page.runs import train
from tests.api.page.test_everywhere import WCAG_AA
from tests.service.fakes import FakeRun
from trainers.events import State

Enter = Callable[..., Visit]


def test_a_job_is_cancelled_and_deleted_when_one_is_sure(service: Service, visit: Enter) -> None:
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
    needs = page.locator(".needs")
    expect(needs).to_contain_text("Resume: for a job that is paused.")
    expect(needs).to_contain_text("Cancel: for a job that has not ended.")
    expect(needs).not_to_contain_text("Delete")
    expect(cancel).to_have_attribute("title", "For a job that has not ended")
    eventually(lambda: service.client.get(job.id).finished is not None)
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete the job").click()
    page.wait_for_url("**#/jobs")
    expect(page.get_by_text("first", exact=True)).to_have_count(0)


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
    job, held, knows = service.client.submit({"name": "first"}), list[Route](), False

    def hold(route: Route) -> None:
        if knows:  # the first request may come later than the buttons
            route.continue_()
        else:
            held.append(route)

    one = visit()
    one.page.route(f"**/v1/jobs/{job.id}", hold)
    page = one.go(f"jobs/{job.id}")
    for name in ("Pause", "Resume", "Scale", "Cancel", "Fork"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    knows = True
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
    expect(problems.nth(0)).to_have_text('line 2workers.countmust be a whole number, but is "two".')
    expect(problems.nth(1)).to_contain_text(re.compile("line 5algorithm.num_push"))
    expect(page.locator(".line.wrong .of")).to_have_text(["workers: two", "  num_push: 0"])
    expect(field).to_have_attribute("aria-invalid", "true")
    problems.nth(1).get_by_role("button").click()
    page.keyboard.type("  num_push: 4")
    expect(verdict).to_have_text("One thing is wrong.")
    field.fill("name: [1")
    expect(problems).to_contain_text("not valid YAML")
    field.fill('{"workers": 1000}')
    expect(problems).to_contain_text("the cluster has 4")
    with page.expect_response(lambda answer: answer.url.endswith("/v1/jobs")):
        page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("button", name="Submit")).to_be_enabled()
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


def test_some_steps_are_recorded_and_drawn(service: Service, visit: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRun, "trace_file", steps_of_a_trace(3))
    job = service.client.submit({"name": "first"})
    run = service.started(job.id)
    train(run, 1)
    page = visit().go(f"jobs/{job.id}")
    page.get_by_role("button", name="Trace", exact=True).click()
    dialog = page.get_by_role("dialog", name="Record some steps")
    dialog.get_by_label("Steps").fill("3")
    dialog.get_by_label("Worker").fill("1")
    dialog.get_by_role("button", name="Record").click()
    chart = page.get_by_role("img", name="Flame chart")
    expect(chart).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("TRACE worker/1, 3 of 3 steps in traces/0001-worker-1-3.json.gz")
    parts = page.get_by_role("region", name="Parts of a step").get_by_role("row")
    expect(parts).to_have_text([
        "PartTime a stepShareTimes a step", "forward50 ms50.0 %1", "waiting30 ms30.0 %1", "sums15 ms15.0 %1",
        "rest5 ms5.0 %1",
    ])  # fmt: skip
    expect(page.get_by_role("region", name="Operators").get_by_role("row").nth(1)).to_have_text("aten::mm40 ms40.0 %1")
    expect(page.get_by_label("Show").locator("option")).to_have_text(["all steps", "step 1", "step 2", "step 3"])
    expect(page.get_by_label("Show")).to_have_value("1")
    light = chart.evaluate(PIXELS)
    chart.hover(position={"x": chart.bounding_box()["width"] / 4, "y": 65})  # type: ignore[index]
    expect(page.get_by_text("forward: 50 ms, 50.0 % of its step")).to_be_visible()
    chart.press("+")
    expect(page.get_by_role("status").last).to_have_text("From 125 ms to 175 ms")
    chart.press("Home")
    expect(page.get_by_label("Show")).to_have_value("")
    assert Axe().run(page, options=WCAG_AA).response["violations"] == []
    page.emulate_media(color_scheme="dark")
    page.get_by_label("Show").select_option("step 2")
    page.mouse.move(0, 0)
    eventually(lambda: 0 < chart.evaluate(PIXELS) < light / 2)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == f"{job.id}-0001-worker-1-3.json.gz"
    run.succeed()
    expect(page.get_by_role("button", name="Trace", exact=True)).to_be_disabled()


def test_a_trace_that_there_is_not_says_why(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first"})
    run = service.started(job.id)
    train(run, 1)
    page = visit().go(f"jobs/{job.id}")
    expect(page.get_by_text("None yet. A trace shows")).to_be_visible()
    run.emit("trace", worker=0, asked=10, steps=4)
    expect(page.get_by_text("worker/0 records: 4 of 10 steps")).to_be_visible()
    run.emit("trace", worker=0, asked=10, steps=0, why="worker 0 died, or left the run")
    expect(page.get_by_text("worker/0: 0 of 10 steps, worker 0 died, or left the run")).to_be_visible()


PIXELS = """canvas => { const { data } = canvas.getContext('2d').getImageData(0, 20, canvas.width, canvas.height - 20);
    let sum = 0; for (let i = 0; i < data.length; i += 4) if (data[i + 3]) sum += data[i]; return sum }"""
"""How bright it is where anything is drawn."""


def steps_of_a_trace(steps: int) -> bytes:
    """Each of 100 ms: a forward pass with an operator, and sums that are waited for."""
    spans = [("step", 0, 100), ("forward", 0, 50), ("aten::mm", 5, 40), ("sums", 50, 45), ("waiting", 55, 30)]
    events = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "training"}}] + [
        {
            "ph": "X", "pid": 1, "tid": 2, "name": name, "ts": 1000 * (100 * step + begin), "dur": 1000 * length,
            "cat": "cpu_op" if ":" in name else "millrace",
        }
        for step in range(steps)
        for name, begin, length in spans
    ]  # fmt: skip
    return gzip.compress(json.dumps({"traceEvents": events}).encode())
