"""POST /v1/plans: what it answers, what it refuses with which field, and what one user may ask for at once."""

import asyncio
import threading
from typing import Any

import pytest

from api import AsyncClient, Refused
from service import PlanRequest
from tests.api.conftest import Service, eventually
from tests.cost.test_links import table
from tests.cost.test_planning import SLOW, profile_of
from tests.service.fakes import WORK
from trainers.cost.plan import Timed
from trainers.cost.planner import plan_work
from trainers.errors import SpecRejected
from trainers.events import State
from trainers.runtime.cluster import Resources
from trainers.spec import TrainSpec

SPEC = {"model": "mlp", "data": "digits", "workers": 8}


def asked(service: Service, **fields: Any) -> tuple[int, dict[str, Any]]:
    answer = service.http.post("/v1/plans", json={"spec": SPEC} | fields)
    return answer.status_code, answer.json()


def pointers(service: Service, **fields: Any) -> list[str]:
    status, found = asked(service, **fields)
    assert status == 422, found
    assert all(error["message"] for error in found["errors"])
    return [error["pointer"] for error in found["errors"]]


def test_both_clients_get_what_the_cost_model_says(shared: Service) -> None:
    plan = shared.client.plan(SPEC, workers="1,2,8", cluster=SLOW, price=0.4)
    assert [each.workers for each in plan.candidates] == [1, 2, 8]
    request = PlanRequest.model_validate({"workers": (1, 2, 8), "cluster": SLOW, "price": 0.4})
    assert plan == plan_work(TrainSpec.model_validate(SPEC), WORK, request)

    async def ask() -> object:
        async with AsyncClient(shared.url) as client:
            return await client.plan(SPEC, workers=[1, 2, 8], cluster=SLOW, price=0.4)

    assert asyncio.run(ask()) == plan


def test_what_is_simulated_is_told_of_the_recommended_candidate(shared: Service) -> None:
    spec = SPEC | {"algorithm": {"name": "mixed", "group": 4}}
    profile = profile_of(TrainSpec.model_validate(spec), forward=Timed(median_s=0.01, spread_s=0.002))
    status, found = asked(shared, spec=spec, profile=profile.model_dump(mode="json"), workers=[4, 8], simulate=1)
    assert status == 200, found
    (each,) = [each for each in found["candidates"] if each["simulated"]]
    assert each["workers"] == found["recommended"]
    simulated = each["simulated"]
    assert {row["who"] for row in simulated["timeline"]["tracks"]} >= {"group 0", "the fullest shard"}
    assert simulated["stragglers"]["of"] == 4
    assert sum(simulated["staleness"].values()) == pytest.approx(1)
    assert pointers(shared, cluster=SLOW, simulate=9) == ["/simulate"]


def test_links_that_were_measured_and_nodes(shared: Service) -> None:
    profile = profile_of(TrainSpec.model_validate(SPEC)).model_dump(mode="json")
    links = table().model_dump(mode="json")
    status, found = asked(shared, profile=profile, links=links, nodes="1..2")
    assert status == 200, found
    assert [(each["workers"], each["nodes"]) for each in found["candidates"]] == [(4, 1), (8, 2)]
    assert pointers(shared, cluster=SLOW, links=links) == ["/links"]


def test_a_model_is_counted_once(service: Service) -> None:
    for workers in (1, 2, 2):
        status, _ = asked(service, spec=SPEC | {"workers": workers}, cluster="ec2-g2", workers=[1])
        assert status == 200
    assert service.runs.counted == ["mlp"]
    asked(service, spec=SPEC | {"data": "mnist"}, cluster="ec2-g2", workers=[1])
    assert len(service.runs.counted) == 2


def test_without_a_cluster_it_takes_the_given_profile_or_the_kept_one(service: Service, tmp_path: Any) -> None:
    assert pointers(service) == ["/profile"]
    profile = profile_of(TrainSpec.model_validate(SPEC))
    status, given = asked(service, profile=profile.model_dump(mode="json"), workers=[1, 2])
    assert (status, given["device"]) == (200, "d")
    kept = tmp_path / "runs" / "profiles"
    kept.mkdir(parents=True)
    (kept / "of-nothing.json").write_text("{")
    (kept / "digits.json").write_text(profile.model_dump_json())
    assert asked(service, workers=[1, 2]) == (200, given)
    assert pointers(service, spec=SPEC | {"batch": 7}) == ["/profile"]


def test_each_refusal_names_its_field(shared: Service) -> None:
    link = {"bandwidth": "10 MB/h"}
    of_another = profile_of(TrainSpec.model_validate(SPEC | {"batch": 7})).model_dump(mode="json")
    elsewhere = profile_of(TrainSpec.model_validate(SPEC), device="other").model_dump(mode="json")
    assert pointers(shared, cluster=SLOW | {"inside": "m"}) == ["/cluster/inside"]
    assert pointers(shared, cluster=SLOW | {"links": {"l": link}}) == ["/cluster/links/l/bandwidth"]
    assert pointers(shared, cluster="cray") == ["/cluster"]
    assert pointers(shared, profile=of_another) == ["/profile"]
    assert pointers(shared, profile=elsewhere, cluster=SLOW) == ["/profile"]
    assert pointers(shared, cluster=SLOW, workers=[9]) == ["/workers"]
    assert pointers(shared, cluster=SLOW, workers="many") == ["/workers"]
    assert pointers(shared, cluster=SLOW, workers=[0]) == ["/workers"]
    assert pointers(shared, cluster=SLOW, nodes="0..2") == ["/nodes"]
    assert pointers(shared, cluster=SLOW, nodes=[9]) == ["/nodes"]
    assert pointers(shared, cluster=SLOW, nodes=[1], workers=[1]) == ["/nodes"]
    assert pointers(shared, cluster=SLOW, links={"nodes": [], "links": []}) == ["/links/nodes", "/links/links"]
    assert pointers(shared, cluster=SLOW, price=-1) == ["/price"]
    assert pointers(shared, cluster=SLOW, prise=1) == ["/prise"]
    assert pointers(shared, cluster=SLOW, spec={"epochs": 0}) == ["/spec/epochs"]
    assert pointers(shared, cluster=SLOW, spec=[]) == ["/spec"]
    downpour = {"algorithm": {"name": "downpour", "backprop": "threads"}}
    assert pointers(shared, cluster=SLOW, spec=downpour)[0].startswith("/spec/algorithm")
    assert shared.http.post("/v1/plans", json=[]).status_code == 422
    assert shared.http.post("/v1/plans", content=b"x" * 300_000).status_code == 413


def test_what_the_count_finds_is_told_too(service: Service) -> None:
    service.runs.count_error = SpecRejected("model: mlp cannot be built for these images")
    assert pointers(service, cluster=SLOW) == ["/spec/model"]


def test_a_user_has_so_many_in_flight(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, began = threading.Event(), threading.Event()

    def count(*_: object) -> object:
        began.set()
        assert gate.wait(60)
        return WORK

    monkeypatch.setattr(service.runs, "count", count)
    statuses = list[int]()
    plans = [
        threading.Thread(target=lambda: statuses.append(asked(service, cluster="ec2-g2", workers=[1])[0]))
        for _ in range(12)
    ]
    for thread in plans:
        thread.start()
    assert began.wait(60)
    eventually(lambda: len(statuses) >= 4)
    assert set(statuses) == {429}
    gate.set()
    for thread in plans:
        thread.join()
    assert sorted(statuses) == [200] * 8 + [429] * 4


def test_own_code_is_for_those_who_may(serve: Any) -> None:
    strict = serve(is_required=True, code_role="admin")
    with pytest.raises(Refused) as refused:
        strict.client.plan({"model": "mine:net"}, cluster="ec2-g2")
    assert refused.value.problem.status == 401
    answer = strict.http.post(
        "/v1/plans", json={"spec": {"model": "mine:net"}, "cluster": "ec2-g2"}, headers=strict.bearer("user")
    )
    assert answer.status_code == 403
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/spec/model/name"]


def test_it_is_described(shared: Service) -> None:
    described = shared.http.get("/openapi.json").json()
    make = described["paths"]["/v1/plans"]["post"]
    assert make["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/PlanSpec")
    assert "switches" in described["components"]["schemas"]["DescribedCluster"]["properties"]
    assert "queued" in described["components"]["schemas"]["Cluster"]["properties"], "the one of Ray"


def ended(service: Service, *accuracies: float, **fields: Any) -> str:
    """A run with these accuracies at the ends of its epochs."""
    job = service.client.submit(SPEC | {"epochs": len(accuracies)} | fields)
    run = service.started(job.id)
    run.state(State.RUNNING)
    for epoch, accuracy in enumerate(accuracies, 1):
        run.step(float(epoch))
        run.evaluation(epoch, accuracy)
    run.succeed()
    assert service.client.wait(job.id).state is State.SUCCEEDED
    return job.id


def test_the_time_to_a_target_comes_from_runs_of_the_same_job(service: Service) -> None:
    service.runs.total = Resources(cpus=64, gpus=0)
    wanted = {"workers": [1, 8], "cluster": "ec2-g2", "target": "test_accuracy=0.9", "price": 2.0}
    unknown = asked(service, **wanted)[1]["target"]
    assert (unknown["epochs"], unknown["seconds"], unknown["jobs"]) == (None, {}, [])
    (trial,) = unknown["trials"]
    assert service.client.check(trial).workers.count == 8
    jobs = [ended(service, 0.5, 0.8, 0.95, seed=1), ended(service, 0.5, 0.91, 0.95, 0.96, 0.97, seed=2)]
    ended(service, 0.99, batch=8)  # another job
    status, plan = asked(service, **wanted)
    assert status == 200
    found = plan["target"]
    assert (sorted(found["jobs"]), found["epochs"], found["trials"]) == (sorted(jobs), 2.5, [])
    rates = {str(each["workers"]): each["examples_per_s"] for each in plan["candidates"]}
    examples = (3 * 5000 / 3 + 2 * 5000 / 5) / 2  # that a run of a fake says it has trained
    assert found["seconds"] == pytest.approx({count: examples / rate for count, rate in rates.items()})
    assert found["prices"]["8"] == pytest.approx(found["seconds"]["8"] / 3600 * 8 * 2)
    assert pointers(service, **wanted | {"target": "test_accuracy=0.999"}) == ["/target"]
    assert pointers(service, **wanted | {"target": "soon"}) == ["/target"]


def test_asynchronous_runs_tell_of_as_many_workers(service: Service) -> None:
    service.runs.total = Resources(cpus=64, gpus=0)
    fields = {"algorithm": "downpour", "optimizer": "adagrad"}
    ended(service, 0.8, 0.95, **fields)
    _, plan = asked(service, spec=SPEC | fields, workers=[4, 8, 16], cluster="ec2-g2", target="test_accuracy=0.9")
    assert list(plan["target"]["seconds"]) == ["8"]
    assert [trial["workers"]["count"] for trial in plan["target"]["trials"]] == [4, 16]
