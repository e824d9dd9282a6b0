"""/metrics: jobs by state, queue wait, requests by the template of their route, and nothing that grows without end."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.conftest import Service, eventually
from trainers.events import State


def samples(service: Service) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All that `/metrics` tells now."""
    answer = service.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(service: Service, name: str, **labels: str) -> float | None:
    return samples(service).get((name, frozenset(labels.items())))


def test_jobs_are_counted_by_state_and_their_wait_in_the_queue_is_measured(service: Service) -> None:
    assert value(service, "millrace_jobs", state="RUNNING") == 0
    job = service.client.submit({"algorithm": "downpour", "workers": 4})
    waiting = service.client.submit({"workers": 4})
    run = service.started(job.id)
    run.state(State.RUNNING)
    eventually(lambda: value(service, "millrace_jobs", state="RUNNING") == 1)
    assert value(service, "millrace_jobs", state="QUEUED") == 1
    assert value(service, "millrace_queue_wait_seconds_count") == 1
    run.succeed()
    service.started(waiting.id)
    eventually(lambda: value(service, "millrace_jobs", state="SUCCEEDED") == 1)
    assert value(service, "millrace_queue_wait_seconds_count") == 2


def test_a_job_has_series_of_its_own_while_it_trains_and_none_afterwards(service: Service) -> None:
    job = service.client.submit({"algorithm": "downpour"})
    run = service.started(job.id)
    run.state(State.RUNNING)
    figures = {"epoch": 1, "examples": 1000, "seconds": 0.1, "test_loss": 2.0, "test_perplexity": 7.4}
    run.emit("evaluation", **figures, headline="perplexity", higher_is_better=False)
    run.step(1.5)
    eventually(lambda: value(service, "millrace_job_epochs", job=job.id) == 1.5)
    assert value(service, "millrace_job_examples_per_second", job=job.id) == 500
    assert value(service, "millrace_job_workers", job=job.id) == 2
    assert value(service, "millrace_job_headline", job=job.id, metric="perplexity") == 7.4
    run.succeed()
    eventually(lambda: service.client.get(job.id).state is State.SUCCEEDED)
    assert job.id not in service.http.get("/metrics").text


def test_fetches_and_pushes_of_a_job_that_trains_are_a_histogram(service: Service) -> None:
    job = service.client.submit({"algorithm": "downpour"})
    run = service.started(job.id)
    run.state(State.RUNNING)
    run.step(0.5, fetch_latency={"39": 6, "40": 2}, push_latency={"50": 1})  # 862 us to 1024 us, then to 1218 us
    run.step(1.0, fetch_latency={"39": 3})
    name = "millrace_job_fetch_seconds"
    eventually(lambda: value(service, f"{name}_count", job=job.id) == 11)
    bounds = ("0.000512", "0.001024", "0.002048", "16.78", "+Inf")
    assert [value(service, f"{name}_bucket", job=job.id, le=bound) for bound in bounds] == [0, 9, 11, 11, 11]
    assert value(service, f"{name}_sum", job=job.id) == pytest.approx(0.0107, rel=0.05)
    assert value(service, "millrace_job_push_seconds_count", job=job.id) == 1
    shown = service.client.get(job.id).result
    assert shown.fetch_latency is not None
    assert shown.fetch_latency.p50_s < 0.001024 < shown.fetch_latency.p99_s
    run.succeed()  # with a result that tells none
    eventually(lambda: service.client.get(job.id).state is State.SUCCEEDED)
    assert service.client.get(job.id).result.fetch_latency == shown.fetch_latency
    assert name not in {key for key, _ in samples(service)}


def test_requests_are_measured_by_route_and_not_by_path(service: Service) -> None:
    for number in range(3):
        assert service.http.get(f"/v1/jobs/nothing{number}").status_code == 404
        assert service.http.get(f"/elsewhere{number}").status_code == 404
        assert service.http.request(("PURGE", "LOCK", "TRACE")[number], "/healthz").status_code == 405
    routes = {"/v1/jobs/{job_id}": ("GET", "404"), "none": ("GET", "404"), "/healthz": ("other", "405")}
    for route, (method, status) in routes.items():
        labels = {"method": method, "route": route, "status": status}
        assert value(service, "millrace_request_seconds_count", **labels) == 3, route
    told = service.http.get("/metrics").text
    assert "nothing1" not in told
    assert "elsewhere1" not in told
    assert "PURGE" not in told


def test_a_stream_is_measured_to_its_first_byte(service: Service) -> None:
    job = service.client.submit({"algorithm": "downpour"})
    service.started(job.id).state(State.RUNNING)
    labels = {"method": "GET", "route": "/v1/jobs/{job_id}/events", "status": "200"}
    with service.http.stream("GET", f"/v1/jobs/{job.id}/events") as stream:
        next(stream.iter_lines())
        assert value(service, "millrace_request_seconds_count", **labels) == 1


def test_what_runs_is_told_and_where_the_nodes_tell_of_themselves(service: Service) -> None:
    names = {name for name, _ in samples(service)}
    assert {"millrace_build_info", "process_resident_memory_bytes", "process_cpu_seconds_total"} <= names
    assert service.http.get("/metrics/nodes").json() == [{"targets": ["192.0.2.1:8080"], "labels": {}}]
