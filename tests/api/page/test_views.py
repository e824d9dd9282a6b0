"""What the page shows: jobs, one job with its curves, several compared, the cluster and the queue."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from benchmarks.measurement.processes import free_port
from tests.api.conftest import Service, eventually
from tests.api.page.conftest import Visit, visitors
from tests.api.page.runs import as_stream, step, train, train_on_text
from trainers.events import State

NOTHING = "\N{EN DASH}"

Enter = Callable[..., Visit]


def test_the_list_of_jobs_is_live(service: Service, visit: Enter) -> None:
    page = visit().go()
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    job = service.client.submit({"algorithm": "downpour", "name": "first", "labels": {"team": "blue"}})
    row = page.get_by_role("row", name="first")
    expect(row).to_contain_text("team=blue")
    run = service.started(job.id)
    run.state(State.RUNNING, "Training", "two workers train")
    run.step(2.0)
    run.step(2.5)
    run.evaluation(2.0, 0.912)
    expect(row.locator(".badge")).to_have_text("RUNNING")
    expect(row).to_contain_text("50 %")
    expect(row.get_by_role("cell", name="accuracy 91.2 %")).to_be_visible()
    expect(row).to_contain_text("left")
    expect(page.get_by_role("status").last).to_have_text("first is RUNNING")
    run.succeed()
    expect(row.locator(".badge")).to_have_text("SUCCEEDED")
    page.get_by_label("State", exact=True).select_option("FAILED")
    expect(page.get_by_text("No jobs match these filters")).to_be_visible()
    page.get_by_label("State", exact=True).select_option("")
    expect(row).to_be_visible()
    page.get_by_label("Label", exact=True).fill("team=blue")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("label=team"))
    expect(row).to_be_visible()
    row.get_by_role("link", name="first").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("first")


def test_one_job_from_its_first_event_to_its_last(service: Service, visit: Enter) -> None:
    job = service.client.submit({"algorithm": "downpour", "name": "first", "epochs": 5})
    page = visit().go(f"jobs/{job.id}")
    expect(page.locator(".chart .note").first).to_have_text("Nothing yet.")
    run = service.started(job.id)
    train(run, 3)
    expect(page.locator(".chart canvas")).to_have_count(6)
    loss = page.get_by_role("figure", name="Loss")
    expect(loss).to_contain_text(re.compile(r"training 0\.8461\s*test 0\.2"))
    expect(page.get_by_role("figure", name="Test accuracy")).to_contain_text(re.compile(r"79\.\d %"))
    expect(page.get_by_role("figure", name="Examples a second")).to_contain_text("530")
    expect(page.get_by_role("figure", name="Staleness")).to_contain_text(re.compile(r"mean 1\s*largest 2"))
    expect(page.get_by_role("figure", name="Workers")).to_contain_text("2")
    expect(page.get_by_role("log")).to_contain_text("RUNNING two workers train")
    expect(page.get_by_label("Spec", exact=True)).to_contain_text('"algorithm": "downpour"')
    expect(page.get_by_label("Spec", exact=True)).not_to_contain_text("seed")
    page.get_by_text("With every default").click()
    expect(page.get_by_label("Spec with every default")).to_contain_text('"seed": 0')
    expect(page.get_by_role("region", name="Checkpoints").get_by_role("row")).to_have_count(4)
    expect(page.get_by_text("RUNNING", exact=True)).to_be_visible()
    expect(page.locator(".job > .progress")).to_contain_text("60 %")
    actors = page.get_by_role("region", name="Actors")
    expect(actors.get_by_role("row")).to_have_count(5)
    links = [link.get_attribute("href") for link in actors.get_by_role("link").all()]
    assert links == [
        "http://127.0.0.1:8265/#/actors", "http://127.0.0.1:8265/#/actors/a0", "http://127.0.0.1:8265/#/actors/a1",
        f"http://127.0.0.1:8265/#/cluster/nodes/{'ab' * 28}",
    ]  # fmt: skip
    expect(page.get_by_role("figure", name="Gradient norm")).to_have_count(0)
    run.succeed()
    expect(page.get_by_text("SUCCEEDED", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    expect(page.locator(".facts")).to_contain_text(re.compile(r"Workers2\D"))
    expect(page.get_by_role("heading", name="Traces")).to_be_hidden()
    page.get_by_label("over").select_option("seconds")
    expect(loss.locator("canvas")).to_be_visible()


def test_a_language_model_s_job_shows_what_its_task_measures(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "gpt", "task": "language_model", "data": "text", "epochs": 5})
    page = visit().go(f"jobs/{job.id}")
    train_on_text(service.started(job.id), 3)
    expect(page.get_by_role("figure", name="Test perplexity")).to_contain_text(re.compile(r"perplexity\s*4\.48"))
    expect(page.get_by_role("figure", name="Test bits per byte")).to_be_visible()
    expect(page.get_by_role("figure", name="Gradient norm").locator("canvas")).to_be_visible()
    expect(page.get_by_role("figure", name="Gradient noise scale").locator("canvas")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^loss 1\.5, ?perplexity 4\.48.*bits per byte 2\.1"))).to_be_visible()
    expect(page.locator(".charts").first).not_to_contain_text(re.compile("accuracy|error", re.IGNORECASE))
    page.get_by_role("link", name="Compare with others").click()
    choice = page.get_by_label("Figure")
    expect(choice.get_by_role("option", name="Test bits per byte")).to_be_attached()
    choice.select_option(label="Test perplexity")
    expect(page.get_by_role("figure", name="Test perplexity").locator("canvas")).to_be_visible()


def test_curves_are_drawn_and_read_by_the_keyboard(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first"})
    train(service.started(job.id), 3)
    page = visit().go(f"jobs/{job.id}")
    plot = page.get_by_role("figure", name="Loss").get_by_role("img")
    expect(plot).to_have_attribute("aria-label", re.compile("Loss, last: training 0.846"))
    inked = """canvas => { const d = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return new Set(d.filter((_, i) => i % 4 === 3)).size > 1 }"""
    assert plot.locator("canvas").evaluate(inked)
    plot.focus()
    page.keyboard.press("Home")
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    expect(plot).to_have_attribute("aria-label", re.compile(r"Loss, at 2\.9 epochs: training 0\.87"))
    expect(page.get_by_role("status").last).to_contain_text("at 2.9 epochs")


def test_a_pause_is_marked_and_only_what_applies_is_drawn(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first", "algorithm": "sync"})
    service.started(job.id).state(State.RUNNING, "Training", "2 workers train")
    trained = [("step", step(epoch, int(10 * epoch)) | {"staleness": {}}) for epoch in (0.5, 1.0, 1.5)]
    running = ("state", {"state": "RUNNING", "message": "2 workers train"})
    paused = ("state", {"state": "PAUSED", "message": "paused by anna"})
    one, path = visit(), f"/v1/jobs/{job.id}"
    one.answer(f"**{path}", service.http.get(path).json() | {"labels": {"sweep": "sweep-1"}})
    one.answer("**/events", as_stream([running, *trained[:2], paused, running, trained[2]]), kind="text/event-stream")
    page = one.go(f"jobs/{job.id}")
    happened = page.locator(".happened li")
    expect(happened).to_have_text(["pause at epoch 1: paused by anna", "resume at epoch 1: it goes on"])
    expect(page.get_by_role("figure", name="Workers").locator("canvas")).to_be_visible()
    expect(page.get_by_role("figure", name="Staleness")).to_be_hidden()
    expect(page.get_by_role("link", name="sweep-1")).to_have_attribute("href", "#/sweeps/sweep-1")
    page.get_by_role("button", name="Scale").click()
    expect(page.get_by_role("dialog")).to_contain_text("The result stays the same; only how fast it comes changes.")


def test_checkpoints_that_are_gone_are_not_shown(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first"})
    train(service.started(job.id), 3)
    one = visit()
    kept = {"step": f"{3000:012d}", "epoch": 3.0, "examples": 3000, "written": 0.0, "files": []}
    one.answer(f"**/v1/jobs/{job.id}/checkpoints", {"checkpoints": [kept]})
    rows = one.go(f"jobs/{job.id}").get_by_role("region", name="Checkpoints").get_by_role("row")
    expect(rows).to_have_count(2)
    expect(rows.last).to_contain_text("3,000")


def test_faults_and_resizes_are_marked_and_told(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first"})
    run = service.started(job.id)
    train(run, 1)
    joined = [f"{job.id}/worker/{i}" for i in (2, 3)]
    run.emit("resize", workers=4, joined=joined, left=[], examples=1000)
    run.emit("step", **step(1.5, 15))
    run.emit("fault", actor=f"{job.id}/worker/1", why="died", examples=1500)
    run.emit("resize", workers=3, joined=[], left=[f"{job.id}/worker/1"], examples=1500, batch=96)
    run.emit("step", **step(2.0, 20))
    run.emit("epoch_audit", epoch=1, trained=1000, lost=0, duplicated=0, dropped=0)
    page = visit().go(f"jobs/{job.id}")
    happened = page.locator(".happened li")
    expect(happened).to_have_text([
        "resize at epoch 1: 4 workers; joined: worker/2, worker/3", "fault at epoch 1.5: worker/1 died",
        "resize at epoch 1.5: 3 workers, batch 96; left: worker/1",
    ])  # fmt: skip
    expect(page.get_by_role("log")).to_contain_text("FAULT worker/1 died")
    expect(page.get_by_role("log")).to_contain_text("epoch 1: 1,000 examples trained, 0 lost, 0 twice")
    actors = page.get_by_role("region", name="Actors").locator("code")
    expect(actors).to_have_text(["coordinator", "worker/0", "shard/0", "worker/2", "worker/3"])
    canvas = page.get_by_role("figure", name="Workers").locator("canvas")
    expect(canvas).to_be_visible()
    inks = """(canvas, name) => {
        const probe = document.createElement('canvas').getContext('2d');
        probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
        probe.fillRect(0, 0, 1, 1);
        const want = probe.getImageData(0, 0, 1, 1).data.join();
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        for (let i = 0; i < data.length; i += 4) if (data.slice(i, i + 4).join() === want) return true;
        return false; }"""
    for name in ("--fault", "--resize"):  # what comes in another batch of events is drawn a moment later
        eventually(lambda name=name: canvas.evaluate(inks, name))  # type: ignore[misc]


def compared(service: Service) -> list[str]:
    """The ids of three runs, of which the last has a validation set and another rate."""
    ids = []
    for name, lr in (("one", 0.1), ("two", 0.1), ("three", 0.05)):
        job = service.client.submit({"name": name, "optimizer": {"name": "momentum", "lr": lr}, "labels": {"of": name}})
        run = service.started(job.id)
        train(run, 2)
        if name == "three":
            run.emit("evaluation", epoch=2, examples=2000, seconds=0.1, set="validation", validation_accuracy=0.5)
        run.succeed()
        ids.append(job.id)
    return ids


def test_several_jobs_are_compared(service: Service, visit: Enter) -> None:
    ids = compared(service)
    page = visit().go("jobs")
    for name in ("one", "three"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("link", name="Compare 2").click()
    runs = page.get_by_role("region", name="Runs").locator("tbody tr")
    expect(runs).to_have_count(2)
    expect(page.locator("canvas")).to_be_visible()
    page.get_by_label("Show one").uncheck()
    expect(runs.nth(0).locator("td").nth(2)).to_have_text(NOTHING)
    options = page.get_by_label("Figure").get_by_role("option")
    expect(options.nth(1)).to_have_text("Validation accuracy")
    expect(options.nth(2)).to_have_text("Test loss")
    page.get_by_label("Figure").select_option("Test accuracy")
    expect(page.get_by_role("figure", name="Test accuracy").locator("canvas")).to_be_visible()
    expect(runs).to_have_count(2)
    page.goto(f"{service.url}/#/compare?jobs={','.join(ids)}")
    expect(runs).to_have_count(3)
    expect(page.get_by_text("These are the last")).to_have_count(0)
    page.goto(f"{service.url}/#/compare")
    expect(page.get_by_text("These are the last 3 jobs.")).to_be_visible()
    expect(runs).to_have_count(3)


def test_a_comparison_tells_values_specs_and_groups(service: Service, visit: Enter) -> None:
    page = visit().go(f"compare?jobs={','.join(compared(service))}")
    table = page.get_by_role("region", name="Runs")
    rows = table.locator("tbody tr")
    heads = table.get_by_role("columnheader")
    facts = ["State", "Evaluated accuracy", "Epochs", "Examples", "Took"]
    expect(heads).to_have_text(["Shown", "Run", "Training loss last", *facts, "optimizer.lr", "label of"])
    expect(rows.nth(2).locator("td").nth(8)).to_have_text("0.05")
    canvas = page.locator("canvas")
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(heads.nth(2)).to_contain_text("epochs")
    expect(rows.nth(0).locator("td").nth(2)).not_to_have_text(NOTHING)
    table.get_by_role("button", name="optimizer.lr").click()
    expect(rows.locator("a")).to_have_text(["three", "one", "two"])
    expect(heads.nth(8)).to_have_attribute("aria-sort", "ascending")
    page.get_by_label("Group by").select_option("optimizer.lr")
    expect(page.get_by_role("figure", name="Training loss, mean and range").locator("canvas")).to_be_visible()
    page.get_by_label("Smoothing").fill("0.9")
    page.get_by_label("log y").check()
    page.reload()  # what was chosen is in the address
    expect(page.get_by_role("figure", name="Training loss, mean and range").locator("canvas")).to_be_visible()
    expect(page.get_by_label("log y")).to_be_checked()
    expect(page.get_by_label("Smoothing")).to_have_value("0.9")
    with page.expect_download() as told:
        page.get_by_role("button", name="Save as CSV").click()
    lines = told.value.path().read_text().splitlines()
    assert lines[0] == "job,name,epoch,loss"
    assert len(lines) == 1 + 3 * 20
    with page.expect_download() as drawn:
        page.get_by_role("button", name="Save as PNG").click()
    assert drawn.value.path().read_bytes().startswith(b"\x89PNG")


def test_the_cluster_and_the_queue(service: Service, visit: Enter) -> None:
    first = service.client.submit({"name": "holds", "workers": {"count": 3, "min": 3}})
    service.started(first.id).state(State.RUNNING)
    for name, priority in (("later", 0), ("urgent", 5), ("latest", 0)):
        service.client.submit({"name": name, "workers": 2, "priority": priority})
    page = visit().go("cluster")
    expect(page.locator(".amount")).to_have_text("CPUs3 of 4 held, 1 free")
    queue = page.get_by_role("region", name="Queue").get_by_role("link")
    expect(queue).to_have_text(["urgent", "later", "latest"])
    expect(page.get_by_role("region", name="Running").get_by_role("link")).to_have_text(["holds"])
    expect(page.get_by_role("link", name="http://127.0.0.1:8265")).to_be_visible()


def test_the_page_says_that_the_service_is_gone_and_goes_on_when_it_is_back(
    serve: Callable[..., Service], browser: Browser
) -> None:
    service = serve(port := free_port())
    job = service.client.submit({"name": "first"})
    run = service.started(job.id)
    train(run, 1)
    with visitors(browser, service.url) as enter:
        page = enter().go(f"jobs/{job.id}")
        lines = page.get_by_role("log").get_by_role("listitem")
        expect(lines).to_have_count(3)
        service.stop()
        expect(page.get_by_role("alert").first).to_contain_text("does not answer")
        run.emit("log", level="info", message="while you were away")
        serve(port)
        expect(lines.last).to_contain_text("while you were away")
        expect(lines).to_have_count(4)
        expect(page.locator("#trouble")).to_be_hidden()


def test_a_single_value_is_a_point(service: Service, visit: Enter) -> None:
    """Of one evaluation no line can be drawn."""
    job = service.client.submit({"name": "first", "epochs": 5})
    train(service.started(job.id), 1)
    page = visit().go(f"jobs/{job.id}")
    canvas = page.get_by_role("figure", name="Test accuracy").locator("canvas")
    expect(canvas).to_be_visible()
    drawn = """(canvas) => {
      const [red, green, blue] = [0x12, 0x66, 0x7a]; // --line-1
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let found = 0;
      for (let i = 0; i < data.length; i += 4) {
        const off = Math.abs(data[i] - red) + Math.abs(data[i + 1] - green) + Math.abs(data[i + 2] - blue);
        if (data[i + 3] && off < 30) found++;
      }
      return found;
    }"""
    eventually(lambda: canvas.evaluate(drawn) > 5)


@pytest.mark.parametrize("kind", ["job", "sweep"])
def test_what_there_is_not_leads_back(visit: Enter, kind: str) -> None:
    page = visit().go(f"{kind}s/{kind}-no")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"No such {kind}")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    page.get_by_role("link", name=f"All {kind}s").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{kind.title()}s")
