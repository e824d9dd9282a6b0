"""As a new user: `millrace serve`, a browser, the job that the form proposes, its curves, a cancel, a fork."""

import re
import subprocess
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tests.api.http.test_serve import LIMIT_MB, MILLRACE, Serving, pss_mb
from tests.api.page.conftest import Visit

pytestmark = pytest.mark.long

SOON_MS = 200_000  # Ray starts its first workers meanwhile


def test_a_job_from_the_form_to_its_fork(browser: Browser, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    server = Serving(state_dir)
    try:
        with server as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
            visit = Visit(browser.new_page(), url)
            page = visit.go()
            page.get_by_role("link", name="New job").click()
            expect(page.locator(".verdict")).to_contain_text("Good: downpour", timeout=SOON_MS)
            field = page.get_by_label("Spec, as YAML or JSON")
            field.fill(re.sub("epochs: 20", "epochs: 4000", field.input_value()))
            page.get_by_role("button", name="Submit").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("first")
            expect(page.locator(".badge").first).to_have_text("RUNNING", timeout=SOON_MS)
            loss = page.get_by_role("figure", name="Loss")
            expect(loss.locator("canvas")).to_be_visible(timeout=SOON_MS)
            expect(loss).to_contain_text(re.compile(r"training \d\.\d+"))
            expect(page.get_by_role("figure", name="Test accuracy").locator("canvas")).to_be_visible(timeout=SOON_MS)
            expect(page.get_by_role("region", name="Checkpoints").get_by_role("row").nth(1)).to_be_visible()
            actors = page.get_by_role("region", name="Actors").get_by_role("link")
            expect(actors).to_have_count(5)  # a coordinator, two workers, two shards
            dashboard = http.get("/v1/cluster").json()["dashboard_url"]
            for link in actors.all():
                assert re.fullmatch(re.escape(dashboard) + r"/?#/actors/[0-9a-f]{32}", str(link.get_attribute("href")))
            page.get_by_role("button", name="Cancel", exact=True).click()
            page.get_by_role("button", name="Cancel the job").click()
            expect(page.locator(".badge").first).to_have_text("CANCELLED", timeout=SOON_MS)
            first = page.url
            page.get_by_role("button", name="Fork", exact=True).click()
            page.get_by_label("Changes").fill("name: forked\nepochs: 4001\n")
            page.get_by_role("dialog").get_by_role("button", name="Fork").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("forked")
            assert page.url != first
            expect(loss.locator("canvas")).to_be_visible(timeout=SOON_MS)
            page.get_by_role("button", name="Cancel", exact=True).click()
            page.get_by_role("button", name="Cancel the job").click()
            expect(page.locator(".badge").first).to_have_text("CANCELLED", timeout=SOON_MS)
            assert pss_mb(server.process.pid) < LIMIT_MB
            visit.check()
            page.close()
    finally:
        subprocess.run([MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)], check=False, timeout=200)
