"""Models on the page: a job's is registered there, and the registry is looked through."""

from collections.abc import Callable
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.api.conftest import Service, eventually
from tests.api.page.conftest import Visit
from tests.api.page.test_everywhere import WCAG_AA
from tests.service.fakes import whole_run
from trainers.runtime.control.snapshots import BEST
from trainers.training.export import FINISHED


def test_a_model_is_registered_fetched_and_removed(
    service: Service, visit: Callable[..., Visit], tmp_path: Path
) -> None:
    service.runs.script = whole_run
    job = service.client.submit({"name": "first", "epochs": 1})
    eventually(lambda: service.client.get(job.id).state.is_terminal)
    (Path(service.client.get(job.id).run_dir) / FINISHED).write_bytes(b"weights")
    page = visit().go(f"jobs/{job.id}")
    page.get_by_role("button", name="Register", exact=True).click()
    box = page.get_by_role("dialog", name="Register the model")
    box.get_by_label("Name").fill("no name")
    box.get_by_role("button", name="Register").click()
    expect(box.get_by_role("alert")).to_contain_text("match")
    box.get_by_label("Name").fill("digits")
    box.get_by_label("Notes").fill("<b>ours</b>")
    box.get_by_role("button", name="Register").click()
    page.get_by_role("link", name="digits@1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("digits")
    expect(page.get_by_text("<b>ours</b>")).to_be_visible()
    assert Axe().run(page, options=WCAG_AA).violations_count == 0
    with page.expect_download() as fetched:
        page.get_by_role("button", name="Download").click()
    assert fetched.value.suggested_filename == "digits-1.safetensors"
    assert Path(fetched.value.path()).read_bytes() == b"weights"
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No model is registered")).to_be_visible()
    assert not [*service.client.versions()]


def test_the_best_model_is_named_and_fetched_beside_the_last_one(service: Service, visit: Callable[..., Visit]) -> None:
    job = service.client.submit({"name": "first", "epochs": 3, "checkpoint": {"keep_best": "loss"}})
    run = service.started(job.id)
    best = {"metric": "loss", "value": 0.125, "epoch": 2, "examples": 2000, "model_path": "best.safetensors"}
    run.succeed(best=best)
    for name in (BEST, FINISHED):
        (run.run_dir / name).write_bytes(name.encode())
    page = visit().go(f"jobs/{job.id}")
    expect(page.get_by_text("after epoch 2")).to_contain_text("0.125")
    for label, name in {"Best model": BEST, "Finished model": FINISHED}.items():
        with page.expect_download() as fetched:
            page.get_by_role("button", name=label).click()
        assert fetched.value.suggested_filename == f"{job.id}-{name}"
        assert Path(fetched.value.path()).read_bytes() == name.encode()


def test_a_job_is_renamed_and_archived(service: Service, visit: Callable[..., Visit]) -> None:
    service.runs.script = whole_run
    job = service.client.submit({"name": "first", "epochs": 1, "labels": {"draft": "yes"}})
    eventually(lambda: service.client.get(job.id).state.is_terminal)
    page = visit().go(f"jobs/{job.id}")
    page.get_by_role("button", name="Edit", exact=True).click()
    box = page.get_by_role("dialog", name="Change the job")
    box.get_by_label("Name").fill("baseline")
    box.get_by_label("Labels").fill("team=vision")
    box.get_by_label("Notes").fill("of the first week")
    box.get_by_role("button", name="Change").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("baseline")
    expect(page.get_by_text("of the first week")).to_be_visible()
    page.get_by_role("button", name="Archive", exact=True).click()
    expect(page.get_by_role("button", name="Bring back")).to_be_visible()
    now = service.client.get(job.id)
    assert (now.name, now.labels, now.notes, now.archived) == (
        "baseline", {"team": "vision"}, "of the first week", True
    )  # fmt: skip
