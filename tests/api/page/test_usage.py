"""What a job's page shows of its fetches and pushes, and of what its actors use."""

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
    assert one.module("lib/latency.js", "m.decades(80, 4000)") == [100, 200, 500, 1000, 2000]
    assert one.module("lib/latency.js", "m.decades(80, 100000)") == [100, 1000, 10000, 100000]


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


def test_what_each_actor_uses_is_drawn_by_actor(service: Service, visit: Enter) -> None:
    job = service.client.submit({"algorithm": "downpour", "name": "first"})
    run = service.started(job.id)
    train(run, 1)
    page = visit().go(f"jobs/{job.id}")
    expect(page.get_by_role("figure", name="Loss").locator("canvas")).to_be_visible()
    expect(page.get_by_role("heading", name="What the actors use")).to_be_hidden()
    actors = ["coordinator", "worker/0"]
    told = {"sent_kb_per_s": [0.0, 20_000.0, 0.0], "received_kb_per_s": [0.0, 0.0, 1.5]}
    for number, there in enumerate([actors, actors, [*actors, "worker/1"]]):
        size = len(there)
        columns = {"cpu_cores": [0.02, 0.5 + number, 0.75], "memory_mb": [90.0, 412.5, 1400.0], **told}
        run.emit("usage", seconds=3.0, actors=there, **{name: values[:size] for name, values in columns.items()})
    cpu = page.get_by_role("figure", name="CPU, cores")
    expect(cpu).to_contain_text(re.compile(r"coordinator 0\.02\s*worker/0 2\.5\s*worker/1 0\.75"))
    expect(cpu.locator("canvas")).to_have_count(1)
    expect(page.get_by_role("figure", name="Memory")).to_contain_text("worker/1 1,400 MB")
    expect(page.get_by_role("figure", name="Sent over the network")).to_contain_text("worker/0 20 MB/s")
    expect(page.get_by_role("figure", name="GPU at work")).to_have_count(0)
    usage = {"gpu_share": [None, 0.91], "gpu_memory_mb": [None, 5000.0]}
    idle = {"sent_kb_per_s": [0.0, 0.0], "received_kb_per_s": [0.0, 0.0]}
    run.emit("usage", seconds=3.0, actors=actors, cpu_cores=[0.0, 1.0], memory_mb=[90.0, 400.0], **idle, **usage)
    expect(page.get_by_role("figure", name="GPU at work")).to_contain_text("worker/0 91 %")
    shown = service.client.get(job.id).usage
    assert shown is not None
    assert shown.gpu_share == [None, 0.91]


def test_an_actor_that_came_later_has_no_values_before(visit: Enter) -> None:
    one = visit()
    one.go()
    code = """(() => { const c = new m.UsageColumns();
        a[0].forEach((data, i) => c.add(i, data));
        return [c.actors, c.figures.cpu_cores, c.has('gpu_share')]; })()"""
    told = [
        {"actors": ["worker/0"], "cpu_cores": [1]},
        {"actors": ["worker/1", "worker/0"], "cpu_cores": [2, 3]},
        {"actors": ["worker/1"], "cpu_cores": [4]},
    ]
    assert one.module("usage/actor_usage.js", code, told) == [
        ["worker/0", "worker/1"], [[1, 3, None], [None, 2, 4]], False,
    ]  # fmt: skip
