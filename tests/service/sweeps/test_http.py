"""Sweeps by REST, as far as no trial is started: what is refused, and with which pointer."""

from collections.abc import Callable

import pytest

from api import Client, Refused
from tests.api.conftest import Service, serve, service  # noqa: F401

JOB = {"data": "digits", "model": "mlp", "workers": 1, "batch": {"per_worker": 8, "base": 8}}


def refused(call: Callable[[], object]) -> tuple[int, dict[str, str]]:
    with pytest.raises(Refused) as caught:
        call()
    problem = caught.value.problem
    return problem.status, {error.pointer: error.message for error in problem.errors}


def test_a_dry_run_counts_the_trials_and_keeps_nothing(service: Service) -> None:  # noqa: F811
    spec, count = service.client.check_sweep({"job": JOB, "axes": {"batch": [8, 16], "seed": [0, 1, 2]}})
    assert count == 6
    assert spec.job.batch.base == 8
    assert list(service.client.sweeps()) == []


@pytest.mark.parametrize(
    ("axes", "pointer", "told"),
    [
        ({"optimizer.lrr": [1]}, "/axes/optimizer.lrr", "did you mean lr?"),
        ({"seed": []}, "/axes/seed", "empty"),
        ({"batch": [8, 12]}, "/axes/batch/1", "does not divide"),
        ({"seed": list(range(300))}, "/axes", "300 configurations"),
    ],
)
def test_bad_axes_are_refused_at_once(service: Service, axes: dict[str, list[int]], pointer: str, told: str) -> None:  # noqa: F811
    body = {"job": JOB, "axes": axes}
    answer = service.http.post("/v1/sweeps", json=body)
    assert answer.headers["content-type"] == "application/problem+json"
    errors = {error["pointer"]: error["message"] for error in answer.json()["errors"]}
    assert answer.status_code == 422
    assert told in errors[pointer]


def test_a_trial_that_can_never_fit_is_refused(service: Service) -> None:  # noqa: F811
    job = JOB | {"workers": {"count": 64, "virtual": 64}}
    status, _ = refused(lambda: service.client.check_sweep({"job": job, "axes": {"seed": [0]}}))
    assert status == 422


def test_a_sweep_that_is_not_there_is_not_found(service: Service) -> None:  # noqa: F811
    client: Client = service.client
    for call in (client.get_sweep, client.cancel_sweep, client.pause_sweep, client.report):
        assert refused(lambda call=call: call("sweep-nothing"))[0] == 404
    assert service.http.get("/v1/sweeps/..%2F..%2Fetc").status_code == 404


def test_the_schema_has_the_sweeps(service: Service) -> None:  # noqa: F811
    schema = service.http.get("/openapi.json").json()
    assert "/v1/sweeps/{sweep_id}/report" in schema["paths"]
    assert "axes" in schema["components"]["schemas"]["SweepSpec"]["properties"]
