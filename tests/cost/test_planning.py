"""Plans: what they say of a spec, and what they refuse."""

from typing import Any

import pytest

from trainers.cost.clusters.cluster import Cluster, cluster_of, read_cluster
from trainers.cost.counting import count_workload
from trainers.cost.plan import Plan, PlanRequest, StepProfile, Timed, worker_counts
from trainers.cost.planner import plan_spec
from trainers.cost.profiled import profiled_fields
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec
from trainers.spec.workers import WorkersSpec

SLOW = {"name": "slow", "device": {"name": "d", "flops": "1 GFLOP/s"}, "switches": [{"devices": 2, "count": 8}],
        "links": {"l": {"bandwidth": "10 MB/s", "latency": "1 ms"}}, "inside": "l", "between": "l"}  # fmt: skip


def spec_of(**fields: Any) -> TrainSpec:
    return TrainSpec.model_validate({"model": "mlp", "data": "digits", "workers": 8} | fields)


def profile_of(spec: TrainSpec, **changes: Any) -> StepProfile:
    timed = {"data": 0.001, "forward": 0.01, "backward": 0.02, "update": 0.003}
    found = StepProfile(
        of=profiled_fields(spec), device="d", cores=2, steps=20, link_latency_s=1e-4, link_bytes_per_s=1e9,
        **{name: Timed(median_s=seconds) for name, seconds in timed.items()},
    )  # fmt: skip
    return found.model_copy(update=changes)


def slow(**changes: Any) -> Cluster:
    return cluster_of(SLOW | changes, "slow")


def planned(spec: TrainSpec, *workers: int, **request: Any) -> Plan:
    return plan_spec(spec, PlanRequest(workers=workers or None, **{"cluster": slow()} | request))


def test_a_step_is_the_sum_of_its_parts_and_the_bottleneck_the_longest() -> None:
    plan = planned(spec_of(algorithm={"name": "sync", "form": "parameter_server"}), 1, 2, 8, price=3.6)
    for each in plan.candidates:
        assert each.step_s == pytest.approx(each.computing_s + each.data_s + each.waiting_s + each.seen_s)
        assert each.examples_per_s == pytest.approx(8 * 32 / each.step_s)
        parts = {e.name: e.total_s - e.hidden_s for e in each.exchanges}
        assert parts[each.bottleneck] == max(parts.values())
        assert each.without_bottleneck == pytest.approx(256 / (each.step_s - parts[each.bottleneck]))
        assert each.price == pytest.approx(1e6 / each.examples_per_s * each.workers * 3.6 / 3600)
    assert [each.nodes for each in plan.candidates] == [1, 1, 4]
    assert plan.shards == 2


def test_one_worker_that_exchanges_nothing_is_the_base() -> None:
    plan = planned(spec_of(), 1, 2)
    assert plan.of(1).speed_up == 1
    assert plan.of(2).efficiency == pytest.approx(plan.of(2).speed_up / 2)


def test_the_fewest_workers_near_the_fastest_are_recommended() -> None:
    plan = planned(spec_of(algorithm="downpour"))
    best = max(plan.candidates, key=lambda each: each.examples_per_s)
    near = [each.workers for each in plan.candidates if each.examples_per_s >= 0.95 * best.examples_per_s]
    assert plan.recommended == min(near)
    assert plan.corner is not None
    assert plan.recommended <= max(plan.corner + 2, best.workers)


def test_a_recommendation_that_is_slower_than_one_worker_says_so() -> None:
    spec = spec_of(workers=4)
    profile = profile_of(spec, link_bytes_per_s=1e5)
    assert "exchanges nothing" not in plan_spec(spec, PlanRequest(profile=profile)).reason  # which recommends one
    plan = plan_spec(spec, PlanRequest(profile=profile, workers=(2, 4)))
    slower = 1 / plan.of(plan.recommended).speed_up
    assert slower > 2
    assert plan.reason.endswith(f"; one worker that exchanges nothing is {slower:.3g} times as fast")


def test_this_machine_from_a_profile() -> None:
    spec = spec_of(workers={"count": 2, "virtual": 4})
    plan = plan_spec(spec, PlanRequest(profile=profile_of(spec)))
    one, two, _, four = plan.candidates
    assert one.step_s == pytest.approx(4 * 0.031 + 0.003)
    assert two.computing_s == pytest.approx(2 * 0.03 + 0.003 / 2)  # each updates half of the parameters
    assert four.computing_s == pytest.approx(2 * (0.03 + 0.003 / 4))  # two share a core
    assert (plan.cluster, plan.basis) == ("this machine", "20 steps timed")


@pytest.mark.parametrize(
    ("fields", "request_", "told"),
    [
        (
            {"workers": 4},
            {"workers": (1, 16)},
            "workers: 16 workers cannot share the 4 virtual workers of the spec; plan",
        ),
        ({"algorithm": "downpour"}, {"workers": (17,)}, "workers: slow has 16 devices, not 17; plan up to that"),
        ({"algorithm": {"name": "mixed", "group": 4}}, {"workers": (3,)}, "workers: .* cannot form groups of 4"),
        ({"algorithm": {"name": "downpour", "push": "layerwise", "backprop": {}}}, {}, "algorithm.backprop: .* leave"),
        ({}, {"cluster": slow(device={"name": "d"})}, "cluster: /device/flops: d does not say what it reaches"),
        ({}, {"cluster": None}, "cluster: there is neither a cluster nor a profile"),
        (
            {},
            {"profile": profile_of(spec_of(model="lenet5"))},
            "profile: it is of model.name lenet5, and the spec has mlp",
        ),
        ({}, {"profile": profile_of(spec_of(batch=64))}, "profile: it is of batch.per_worker 64, and the spec has 32"),
        (
            {},
            {"profile": profile_of(spec_of(), device="x")},
            "profile: it is of device x, and the cluster's is d; profile",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(fields: dict[str, Any], request_: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecRejected, match=told):
        plan_spec(spec_of(**fields), PlanRequest(**{"cluster": slow()} | request_))


def test_numbers_of_workers_are_read() -> None:
    assert worker_counts("1..4,8") == (1, 2, 3, 4, 8)
    for text in ("", "0", "4..2", "1..9999", "two"):
        with pytest.raises(SpecRejected, match="workers: "):
            worker_counts(text)


def test_hybrid_is_planned_with_its_head() -> None:
    plan = plan_spec(spec_of(model="lenet5", algorithm="hybrid"), PlanRequest(cluster=read_cluster("one-weird-trick")))
    assert {e.name for e in plan.of(8).exchanges} == {"activities", "gradients"}
    assert plan.of(8).sent_bytes > 0


def test_blocks_leave_out_what_travels_between_the_layers() -> None:
    """In scheme a, of 8 workers that send (K - 1)/K of kn examples' activities each."""

    def activities(**algorithm: Any) -> float:
        spec = spec_of(model="lenet5", algorithm={"name": "hybrid"} | algorithm)
        plan = plan_spec(spec, PlanRequest(cluster=read_cluster("one-weird-trick")))
        (found,) = (each for each in plan.of(8).exchanges if each.name == "activities")
        return found.sent_bytes / 4 / (spec.batch.per_worker * spec.workers.num_virtual / 8)

    first, last = 2 * 7 * 64, 2 * 7 * 10  # the backbone's and their gradients; the sums of the logits
    assert activities(connect={"blocks": 12}) == pytest.approx(first + last)
    within = 2 * 120 * (8 - 2) / 2
    assert activities(connect={"blocks": 2}) == pytest.approx(first + last + within)
    assert activities(connect={"blocks": 12, "rank": 5}) == pytest.approx(first + last + 2 * 7 * 12 * 5)
    assert activities(connect={"blocks": 2, "rank": 5}) == pytest.approx(first + last + within + 2 * 7 * 2 * 5)


def test_projections_leave_out_the_weights_that_they_stand_for() -> None:
    spec = spec_of(model="lenet5", algorithm={"name": "hybrid"})
    work = count_workload(spec)
    assert work.left_out(4) == 84 * 120 * 3 // 4
    assert work.left_out(4, 6) == 84 * 120 - 84 * (30 + 3 * 6) - 6 * 120
    assert work.left_out(4, 30) == -30 * 120  # all weights, and the projections


@pytest.mark.parametrize(
    ("connect", "fewer"), [({"blocks": 4}, 84 * 90), ({"blocks": 4, "rank": 6}, 84 * 72 - 6 * 120)]
)
def test_a_plan_tells_the_parameters_that_are_trained(connect: dict[str, int], fewer: int) -> None:
    """And takes groups of projections, of which the whole layers that it counts have none."""
    groups = [{"match": "fc2.*", "lr": 0.1}, {"match": "*.projection.weight", "lr": 0.1}]
    fields = {"optimizer": {"name": "momentum", "groups": groups[: 1 + ("rank" in connect)][::-1]}}
    spec = spec_of(model="lenet5", algorithm={"name": "hybrid", "connect": connect}, **fields)
    whole = count_workload(spec_of(model="lenet5")).parameters
    assert planned(spec).parameters == whole - fewer
    unknown = {"optimizer": {"name": "momentum", "groups": [{"match": "*.projections", "lr": 0.1}]}}
    with pytest.raises(SpecRejected, match=r"^optimizer.groups.0.match: \*.projections is the name of no parameter"):
        planned(spec_of(model="lenet5", algorithm={"name": "hybrid", "connect": connect}, **unknown))


def test_columns_send_images_and_activities_and_no_gradient_of_a_parameter() -> None:
    """Of two workers, each of which has half of the images of a step, and half of the maps where columns meet."""
    fields = {"model": "convnet_two_columns", "workers": {"count": 2, "virtual": 2}}
    spec = spec_of(algorithm={"name": "hybrid", "columns": 2, "split": "outputs"}, **fields)
    plan = plan_spec(spec, PlanRequest(cluster=read_cluster("one-weird-trick"), workers=(1, 2)))
    (found,) = plan.of(2).exchanges
    pixels, maps, units = 8 * 8, 2 * 64 * 2 * 2, 1024 + 1024
    assert found.name == "activities"
    assert found.sent_bytes == 4 * 2 * spec.batch.per_worker * (pixels + 2 * maps + 2 * units) / 2
    assert plan.of(1).sent_bytes == 0
    with pytest.raises(SpecRejected, match="no convolution of this model has groups"):
        planned(spec_of(model="lenet5", algorithm={"name": "hybrid", "columns": 2}, workers=2))


def test_a_spatial_split_is_planned_with_its_halos() -> None:
    """Of lenet5 on 8 x 8 digits, two workers, of whose minibatches each has four of eight."""
    spec = spec_of(model="lenet5", algorithm="spatial", batch=10, workers={"count": 2, "virtual": 8})
    plan = planned(spec, 1, 2)
    sent = {e.name: e.sent_bytes / 4 / 80 for e in plan.of(2).exchanges}  # elements an example of the step
    assert sent["halos"] == 2 * 8 + 2 * 2 * 6 * 4  # two rows, and of the second convolution their gradients
    assert (sent["images"], sent["maps"]) == (64 / 2 / 2, 2 * 64 / 2 / 2)
    assert not any(e.total_s for e in plan.of(1).exchanges)
    work = count_workload(spec)
    others = 1 - work.row_share
    assert plan.of(2).computing_s / plan.of(1).computing_s == pytest.approx((1 - others) / 2 + others, rel=0.01)
    alone = planned(spec.model_copy(update={"workers": WorkersSpec(count=1, virtual=8)}), 1)
    assert alone.memory_bytes - plan.memory_bytes == 4 * 10 * work.row_activities / 2


def test_the_interval_follows_the_measured_spread() -> None:
    spec = spec_of()
    steady = plan_spec(spec, PlanRequest(workers=(1, 2), profile=profile_of(spec)))
    assert all(each.least_per_s == each.examples_per_s == each.most_per_s for each in steady.candidates)
    uneven = {"forward": Timed(median_s=0.01, spread_s=0.001), "backward": Timed(median_s=0.02, spread_s=0.002)}
    plan = plan_spec(spec, PlanRequest(workers=(1, 2), profile=profile_of(spec, **uneven)))
    error = 1.645 * (2 / 20) ** 0.5 * (0.001 + 0.002)
    (one, two) = plan.candidates
    assert one.least_per_s == pytest.approx(8 * 32 / (one.step_s + 8 * error))
    assert two.least_per_s < two.examples_per_s < two.most_per_s  # type: ignore[operator]
    assert planned(spec, 1).of(1).least_per_s is None


def test_a_rate_follows_the_mean_of_the_steps_and_of_older_profiles_the_median() -> None:
    spec, usual = spec_of(), Timed(median_s=0.02)

    def alone(**timed: Timed) -> float:
        profile = profile_of(spec, **timed)
        return plan_spec(spec, PlanRequest(workers=(1,), profile=profile)).of(1).step_s

    late = Timed(median_s=0.02, mean_s=0.021)
    assert alone(backward=late) - alone(backward=usual) == pytest.approx(8 * 0.001)


def test_staleness_is_that_of_the_others_between_fetch_and_push() -> None:
    def stale(workers: int, **algorithm: Any) -> Any:
        return planned(spec_of(algorithm={"name": "downpour"} | algorithm), workers).of(workers).staleness

    assert (stale(1).mean, stale(4).mean, stale(4).least, stale(4).most) == (0, 3, 3, 3)
    assert stale(4, num_push=2, num_fetch=4).mean == pytest.approx((3 + (2 * 3 + 1)) / 2)
    assert stale(8, max_staleness=0).most <= 8
    assert (stale(4, push="delta", steps=5).mean, stale(4, push="delta", max_staleness=0).most) == (3, 3)
    groups = spec_of(algorithm={"name": "mixed", "group": 2, "push": "delta", "steps": 5})
    assert planned(groups, 8).of(8).staleness == stale(4, push="delta", steps=5)
    assert planned(spec_of(), 4).of(4).staleness is None
    assert planned(spec_of(algorithm="easgd"), 4).of(4).staleness is None
    spec = spec_of(algorithm="downpour")
    uneven = profile_of(spec, forward=Timed(median_s=0.01, spread_s=0.003))
    found = plan_spec(spec, PlanRequest(workers=(8,), profile=uneven)).of(8).staleness
    assert found is not None
    assert found.least < found.mean == 7 < found.most


def test_the_fullest_shard_holds_two_versions_and_two_gradients_a_worker() -> None:
    plan = planned(spec_of(algorithm="downpour", optimizer="adagrad", ps={"shards": 1}), 1, 4)
    assert plan.of(1).shard_bytes == plan.parameters * 4 * (2 * 2 + 2)
    assert plan.of(4).shard_bytes == plan.parameters * 4 * (2 * 2 + 8)
    assert planned(spec_of(), 4).of(4).shard_bytes is None


def test_the_regret_is_against_the_fastest_candidate() -> None:
    plan = planned(spec_of(algorithm="downpour"))
    best = max(each.examples_per_s for each in plan.candidates)
    assert plan.regret == pytest.approx(1 - plan.of(plan.recommended).examples_per_s / best)


def test_a_search_names_the_best_of_each_algorithm_and_minibatch() -> None:
    plan = planned(spec_of(algorithm="downpour", optimizer="sgd"), 1, 2, 4, 8, search=True)
    assert {option.algorithm for option in plan.options} >= {"downpour", "sync", "mixed", "parallel_sgd"}
    assert {option.per_worker for option in plan.options} == {16, 32, 64, 128}
    rates = [option.examples_per_s for option in plan.options]
    assert rates == sorted(rates, reverse=True)
    for n in (16, 32, 64, 128):
        assert min(option.regret for option in plan.options if option.per_worker == n) == 0
    own = next(o for o in plan.options if (o.algorithm, o.per_worker) == ("downpour", 32))
    fixed = planned(spec_of(algorithm="downpour", optimizer="sgd", ps={"shards": own.shards}), 1, 2, 4, 8)
    assert own.examples_per_s == pytest.approx(fixed.of(own.workers).examples_per_s)
    assert planned(spec_of(), 1).options == ()


@pytest.mark.parametrize("algorithm", ["downpour", "mixed", "sync"])
def test_a_profile_that_spreads_wildly_still_has_an_interval(algorithm: str) -> None:
    """As of a machine that was busy with something else for half of five steps."""
    spec = spec_of(algorithm=algorithm)
    wild = profile_of(spec, steps=5, **{part: Timed(median_s=0.01, spread_s=0.5) for part in ("forward", "backward")})
    for each in plan_spec(spec, PlanRequest(profile=wild)).candidates:
        assert 0 < (each.least_per_s or 0) < each.examples_per_s < (each.most_per_s or 0)
