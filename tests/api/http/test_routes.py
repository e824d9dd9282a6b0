"""The REST routes: what they take, what they answer, and how they say no."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.api.conftest import Service, eventually
from trainers.events import State

PROBLEM = "application/problem+json"


def refused(answer: httpx2.Response, status: int) -> list[str]:
    """The pointers of a problem."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == PROBLEM
    problem = answer.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return [error["pointer"] for error in problem["errors"]]


def test_a_job_from_post_to_result(service: Service) -> None:
    answer = service.http.post("/v1/jobs", json={"algorithm": "downpour", "labels": {"team": "vision"}})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["spec"]["algorithm"]["name"] == job["algorithm"] == "downpour"
    run = service.started(job["id"])
    run.state(State.RUNNING, "Training", "two workers train")
    run.step(2.5)
    eventually(lambda: service.http.get(f"/v1/jobs/{job['id']}").json()["reason"] == "Training")
    eventually(lambda: service.http.get(f"/v1/jobs/{job['id']}").json()["progress"] == 0.5)
    job = service.http.get(f"/v1/jobs/{job['id']}").json()
    assert (job["state"], job["workers"]) == ("RUNNING", 2)
    run.succeed()
    eventually(lambda: service.http.get(f"/v1/jobs/{job['id']}").json()["state"] == "SUCCEEDED")
    result = service.http.get(f"/v1/jobs/{job['id']}").json()["result"]
    assert (result["job_id"], result["test_accuracy"]) == (job["id"], 0.97)
    assert refused(service.http.post(f"/v1/jobs/{job['id']}/cancel"), 409) == []


@pytest.mark.parametrize("media_type", ["application/yaml", "text/yaml", "application/x-yaml; charset=utf-8"])
def test_yaml_is_taken_too(service: Service, media_type: str) -> None:
    body = b"algorithm: {name: downpour, num_push: 4}\nname: from-yaml\n"
    answer = service.http.post("/v1/jobs?dry_run=true", content=body, headers={"Content-Type": media_type})
    assert answer.status_code == 200
    assert answer.json()["algorithm"]["num_push"] == 4


def test_a_dry_run_answers_the_resolved_spec_and_starts_nothing(service: Service, tmp_path: Path) -> None:
    answer = service.http.post("/v1/jobs?dry_run=true", json={"data": {"name": "mnist", "root": "sets"}})
    assert answer.status_code == 200
    spec = answer.json()
    assert spec["data"]["root"] == str(tmp_path / "sets")
    assert spec["name"] == "sync-mnist"
    assert spec["workers"]["count"] == 2
    assert service.http.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        (b'{"algorithm": {"name": "downpour", "num_push": 4, "max_staleness": 1}}', ["/algorithm/max_staleness"]),
        (b'{"epochs": 0, "workers": "two", "surprise": 1}', ["/workers/count", "/epochs", "/surprise"]),
        (b'{"algorithm": "telepathy"}', ["/algorithm"]),
        (b'{"epochs": true, "workers": "2", "data": {"limit": "7"}}', ["/epochs", "/workers", "/data/limit"]),
        (b'{"workers": 5}', []),  # more than the cluster has
        (b'{"name": "../../etc"}', ["/name"]),
        (b"[]", [""]),
        (b'{"epochs": 1', [""]),
        (b"\xff\xfe", [""]),
        (b"[" * 100_000, [""]),
        (b'{"epochs": ' + b"9" * 5000 + b"}", [""]),
        (b"", [""]),
        (b"null", [""]),
    ],
)
def test_a_malformed_spec_is_refused_with_pointers_and_nothing_started(
    service: Service, body: bytes, pointers: list[str]
) -> None:
    answer = service.http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert refused(answer, 422) == pointers
    assert service.http.get("/v1/jobs").json()["jobs"] == []
    assert service.runs.runs == {}


def test_bad_requests_are_problems_too(service: Service) -> None:
    assert refused(service.http.get("/v1/jobs/nosuchjob1234"), 404) == []
    assert refused(service.http.get("/v1/jobs/nosuchjob1234/events"), 404) == []
    assert refused(service.http.get("/v1/jobs/nosuchjob1234/logs"), 404) == []
    assert refused(service.http.post("/v1/jobs/nosuchjob1234/cancel"), 404) == []
    assert refused(service.http.get("/v1/nowhere"), 404) == []
    answer = service.http.delete("/v1/jobs")
    assert refused(answer, 405) == []
    assert answer.headers["allow"]
    assert refused(service.http.post("/v1/jobs", content=b"x", headers={"Content-Type": "text/xml"}), 415) == []
    assert refused(service.http.post("/v1/jobs", json={"x": "y" * 300_000}), 413) == []
    assert refused(service.http.get("/v1/jobs?page_size=0"), 422) == ["/query/page_size"]
    assert refused(service.http.get("/v1/jobs?page_token=../x"), 422) == ["/query/page_token"]
    assert refused(service.http.get("/v1/jobs?state=DREAMING"), 422) == ["/query/state/0"]
    assert refused(service.http.get("/v1/jobs?label==x"), 422) == ["/query/label/0"]
    headers = {"Idempotency-Key": "k" * 201}
    assert refused(service.http.post("/v1/jobs", json={}, headers=headers), 422) == ["/header/Idempotency-Key"]


def test_two_hundred_posts_with_one_key_make_one_job(service: Service) -> None:
    def post(_: int) -> tuple[int, str, bool]:
        answer = service.http.post("/v1/jobs", json={"epochs": 3}, headers={"Idempotency-Key": "the key"})
        return answer.status_code, answer.json()["id"], "idempotent-replayed" in answer.headers

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(post, range(200)))
    assert {status for status, _, _ in answers} == {202}
    assert len({job_id for _, job_id, _ in answers}) == 1
    assert sum(replayed for _, _, replayed in answers) == 199
    assert len(service.http.get("/v1/jobs").json()["jobs"]) == 1
    answer = service.http.post("/v1/jobs", json={"epochs": 4}, headers={"Idempotency-Key": "the key"})
    assert refused(answer, 422) == ["/header/Idempotency-Key"]


def test_lists_are_paged_and_filtered(service: Service) -> None:
    ids = [service.client.submit({"workers": 4, "labels": {"n": str(n % 2)}}).id for n in range(5)]
    page = service.http.get("/v1/jobs?page_size=2").json()
    assert [job["id"] for job in page["jobs"]] == ids[:2:-1]
    page = service.http.get("/v1/jobs", params={"page_size": 200, "page_token": page["next_page_token"]}).json()
    assert [job["id"] for job in page["jobs"]] == ids[2::-1]
    assert page["next_page_token"] is None
    assert [job.id for job in service.client.list(labels=("n=1",))] == [ids[3], ids[1]]
    service.started(ids[0])
    service.client.cancel(ids[4])
    assert [job.id for job in service.client.list((State.CANCELLED,))] == [ids[4]]
    assert [job.id for job in service.client.list((State.QUEUED,))] == ids[3:0:-1]


def test_jobs_are_found_by_parts_of_their_names_and_by_algorithm(service: Service) -> None:
    names = {"Conv-b": "sync", "conv_b": "downpour", "other": "sync"}
    ids = {name: service.client.submit({"name": name, "algorithm": by}).id for name, by in names.items()}

    def found(**params: str) -> list[str]:
        return [job["id"] for job in service.http.get("/v1/jobs", params=params).json()["jobs"]]

    assert found(name="CONV") == [ids["conv_b"], ids["Conv-b"]]
    assert found(name="_b") == [ids["conv_b"]]  # no wildcard
    assert found(algorithm="sync") == [ids["other"], ids["Conv-b"]]
    assert found(name="conv", algorithm="sync") == [ids["Conv-b"]]
    assert found(name="\0") == []


def test_a_list_has_the_figures_of_each_job(service: Service) -> None:
    job = service.client.submit({"workers": 3, "epochs": 4})
    assert (job.num_workers, job.curve, job.measured, job.loss, job.examples_per_s) == (3, [], {}, None, None)
    run = service.started(job.id)
    run.state(State.RUNNING, "Training", "two workers train")
    for epoch, accuracy in enumerate((0.5, 0.7, 0.9), 1):
        run.step(float(epoch))
        run.evaluation(float(epoch), accuracy)
    eventually(lambda: len(next(iter(service.client.list())).curve) == 3)
    shown = next(iter(service.client.list()))
    assert shown.curve == [0.5, 0.7, 0.9]
    assert shown.measured["test_accuracy"] == 0.9
    assert (shown.loss, shown.examples_per_s) == (0.5, 500.0)
    run.succeed()
    eventually(lambda: next(iter(service.client.list())).state is State.SUCCEEDED)
    ended = next(iter(service.client.list()))
    assert (ended.curve, ended.num_workers) == (shown.curve, 2)  # that trained
    assert ended.wall_s > 0


def test_what_there_is_to_choose_from(service: Service) -> None:
    algorithms = {entry["name"]: entry for entry in service.http.get("/v1/algorithms").json()}
    assert {"sync", "downpour"} <= algorithms.keys()
    assert "max_staleness" in algorithms["downpour"]["options"]["properties"]
    assert algorithms["downpour"]["summary"]
    assert set(service.http.get("/v1/schema/job").json()["properties"]) >= {"algorithm", "name", "labels", "priority"}
    cluster = service.http.get("/v1/cluster").json()
    assert cluster["total"] == {"cpus": 4.0, "gpus": 0.0}
    assert cluster["grows_to"] is None
    assert cluster["queued"] == 0
    assert service.http.get("/healthz").json() == service.http.get("/readyz").json() == {"status": "ok"}


def test_a_cluster_that_does_not_answer_makes_it_unready(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise ConnectionError("no head")

    monkeypatch.setattr(service.runs, "total_resources", gone)
    assert refused(service.http.get("/readyz"), 503) == []
    assert service.http.get("/healthz").status_code == 200


def test_openapi_is_complete(service: Service) -> None:
    schema = service.http.get("/openapi.json").json()
    text = json.dumps(schema)
    named = set(schema["components"]["schemas"])
    assert {reference.split('"')[0] for reference in text.split("#/components/schemas/")[1:]} <= named
    assert "#/$defs" not in text
    body = schema["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "application/yaml"}
    assert {"JobSpec", "DownpourConfig", "JobView", "Problem", "FieldError"} <= named
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], f"{method} {path} says nothing"


@pytest.mark.parametrize(
    ("method", "address", "pointer", "detail"),
    [
        ("GET", "/v1/jobs?stat=RUNNING", "/query/stat", "did you mean state"),
        ("GET", "/v1/jobs?state=RUNNINGX", "/query/state/0", "did you mean RUNNING"),
        ("GET", "/v1/models?state=RUNNING", "/query/state", "has none"),
        ("POST", "/v1/jobs?dry_rum=true", "/query/dry_rum", "did you mean dry_run"),
        ("GET", "/v1/jobs?user=ann&user=bob", "/query/user", "stands twice"),
        ("POST", "/v1/jobs?dry_run=true&dry_run=false", "/query/dry_run", "stands twice"),
    ],
)
def test_a_parameter_that_there_is_not_is_refused(
    service: Service, method: str, address: str, pointer: str, detail: str
) -> None:
    answer = service.http.request(method, address, json={} if method == "POST" else None)
    assert refused(answer, 422) == [pointer]
    assert detail in answer.json()["detail"]
    assert service.http.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("path", "media_type"),
    [("jobs", "application/json"), ("jobs", "application/yaml"), ("webhooks", "application/json")],
)
def test_a_key_that_stands_twice_is_refused(service: Service, path: str, media_type: str) -> None:
    content = b'{"epochs": 2, "epochs": 3}'
    answer = service.http.post(f"/v1/{path}", content=content, headers={"Content-Type": media_type})
    assert refused(answer, 422)
    assert "epochs" in answer.json()["detail"]


@pytest.mark.parametrize("workers", ["2", True, 2.5])
def test_a_number_of_workers_is_a_number(service: Service, workers: object) -> None:
    job = service.http.post("/v1/jobs", json={"workers": 2}).json()
    assert refused(service.http.post(f"/v1/jobs/{job['id']}/scale", json={"workers": workers}), 422) == ["/workers"]


def test_head_is_answered_where_get_is(service: Service) -> None:
    job = service.http.post("/v1/jobs", json={}).json()
    for path in ("", "/v1/jobs", f"/v1/jobs/{job['id']}", "/healthz", "/v1/schema/job"):
        get, head = service.http.get(path), service.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"]
        assert head.headers["content-type"] == get.headers["content-type"]
    assert service.http.head("/v1/jobs/no-such-job").status_code == 404
    answer = service.http.head(f"/v1/jobs/{job['id']}/events")  # a stream that goes on
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "HEAD" in service.http.put("/v1/jobs").headers["allow"]
