"""What a job's page shows of its fetches and pushes."""

import random
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.api.conftest import Service
from tests.api.page.conftest import Visit
from tests.api.page.runs import step, train
from trainers.events import State
from trainers.latency import bucket_of, latency_figures

Enter = Callable[..., Visit]


def test_percentiles_are_those_of_the_command_line(visit: Enter) -> None:
    drawn, counts = random.Random(3), dict[str, int]()
    for _ in range(300):
        bucket = str(bucket_of(drawn.lognormvariate(-7, 2)))
        counts[bucket] = counts.get(bucket, 0) + 1
    one = visit()
    one.go()
    data = {"fetch_latency": counts, "push_latency": {"7": 1}}
    assert one.module("lib/latency.js", "m.latencyFigures(a[0])", data) == pytest.approx(latency_figures(data))
    assert set(one.module("lib/latency.js", "Object.values(m.latencyFigures({}))")) == {None}
    xs, fetches, pushes = one.module("lib/latency.js", "m.histogram(a[0])", [{"3": 2, "7": 5}, {"5": 1}])
    assert xs == pytest.approx([2 ** (i / 4) for i in range(3, 9)])  # where each begins, microseconds
    assert (fetches, pushes) == ([2, 0, 0, 0, 5, 0], [0, 0, 1, 0, 0, 0])


def test_fetches_and_pushes_have_percentiles_and_a_histogram(service: Service, visit: Enter) -> None:
    job = service.client.submit({"algorithm": "downpour", "name": "first"})
    run = service.started(job.id)
    train(run, 1)
    page = visit().go(f"jobs/{job.id}")
    expect(page.get_by_role("figure", name="Loss").locator("canvas")).to_be_visible()
    expect(page.get_by_role("heading", name="Fetches and pushes")).to_be_hidden()
    expect(page.get_by_role("figure", name="Fetch latency")).to_be_hidden()
    for number in (11, 12):
        told = {"fetch_latency": {"39": 45, "60": 5}, "push_latency": {"44": 10}}
        run.emit("step", **step(number / 10, number), **told)
    rows = page.get_by_role("region", name="Latency").get_by_role("row")
    expect(rows.nth(1)).to_have_text(re.compile(r"^fetches100948 µs1\.02 ms38\.3 ms$"))
    expect(rows.nth(2)).to_have_text(re.compile(r"^pushes20"))
    drawn = page.get_by_role("figure", name="How long a call took")
    expect(drawn.locator("canvas")).to_be_visible()
    expect(drawn).to_contain_text(re.compile(r"fetches 100 in all\s*pushes 20 in all"))
    drawn.get_by_role("img").focus()
    page.keyboard.press("ArrowLeft")  # the empty one behind the last
    page.keyboard.press("ArrowLeft")
    expect(drawn.get_by_role("img")).to_have_attribute("aria-label", re.compile(r"at 32\.8 ms: fetches 10, pushes 0"))
    expect(page.get_by_role("figure", name="Fetch latency")).to_contain_text(re.compile(r"p50 9\d\d µs"))
    run.state(State.FAILED, "Told", "it is over")
    expect(page.locator(".badge").first).to_have_text("FAILED")
