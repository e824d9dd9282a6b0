"""The closed forms: worked examples, the repairman's model, and that nothing faster makes a prediction slower."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.fleets import HEAD, MB, WORK, cluster, fleet
from trainers.cost.clusters.cluster import Cluster, cluster_of
from trainers.cost.planning import step_of
from trainers.cost.schedules.among_workers import (
    broadcast_s,
    buckets_of,
    canonical_s,
    exchanged,
)
from trainers.cost.schedules.copies import copies_of_average, copies_of_sum
from trainers.cost.schedules.fleet import Fleet, Floats
from trainers.cost.schedules.repairman import corner, response_s
from trainers.cost.schedules.shares import fullest_share, shipped_vectors
from trainers.cost.schedules.step import slowest
from trainers.cost.workload import HeadLayer, LayerSeconds, Pace
from trainers.spec import TrainSpec


def test_workers_fill_the_switches_in_order() -> None:
    found = fleet(1, 4, 5, 8, 9, 16)
    assert found.nodes.tolist() == [1, 1, 2, 2, 3, 4]
    assert found.most.tolist() == [1, 4, 4, 4, 4, 4]
    uneven = cluster(switches=[{"devices": 1}, {"devices": 3}])
    assert fleet(1, 2, 3, 4, on=uneven).most.tolist() == [1, 1, 2, 3]


def test_workers_share_cores_and_what_lies_beside_them() -> None:
    """Two cores: a second worker makes both a fifth slower, and a third and fourth have to share the cores."""
    found = fleet(1, 2, 4, 5, cores=2, contention=0.2)
    assert found.crowding.tolist() == pytest.approx([1.0, 1.2, 2 * 1.2, 2 * 1.2])
    assert fleet(1, 2, 4, 5).crowding.tolist() == [1.0] * 4
    assert fleet(1, 2, 4, 8, contention=0.1).crowding.tolist() == pytest.approx([1.0, 1.1, 1.3, 1.3])


def test_a_canonical_sum_through_messages() -> None:
    """Of 4 MB among 4 workers each sends 3/4 of its part in pieces and 3/4 of the result: 6 MB at 1 GB/s, in 6
    messages of 1 ms."""
    seconds, sent = canonical_s(fleet(1, 4, on=cluster(latency=1e-3)), 4 * MB)
    assert seconds.tolist() == pytest.approx([0.0, 0.006 + 6e-3])
    assert sent.tolist() == pytest.approx([0.0, 6 * MB])


def test_a_canonical_sum_through_memory() -> None:
    """Each of 4 workers reads its quarter of three others' 4 MB, in two meetings of 1 ms."""
    seconds, _ = canonical_s(fleet(4, on=cluster(latency=1e-3), memory_is_shared=True), 4 * MB)
    assert seconds.tolist() == pytest.approx([0.003 + 2e-3])


def test_between_nodes_the_slowest_link_counts_and_is_shared() -> None:
    """8 workers on two nodes: the network card's 1 GB/s for four of them; 2 x 7/8 x 4 MB each."""
    seconds, _ = canonical_s(fleet(8, on=cluster(inside=10e9)), 4 * MB)
    assert seconds.tolist() == pytest.approx([7 * MB / 0.25e9])


def test_a_broadcast_doubles_those_who_have_it() -> None:
    """4 MB at 1 GB/s: to one other, and in three rounds to seven; between two nodes of four over the network's 0.1 GB/s
    once, and within them through memory."""
    assert broadcast_s(fleet(1, 2, 4), 4 * MB).tolist() == pytest.approx([0.0, 0.004, 0.008])
    slow = cluster(between=0.1e9)
    assert broadcast_s(fleet(4, 8, on=slow, memory_is_shared=True), 4 * MB).tolist() == pytest.approx([0.004, 0.044])
    apart = cluster(between=0.1e9, switches=[{"devices": 1, "count": 8}])
    assert broadcast_s(fleet(2, 8, on=apart, memory_is_shared=True), 4 * MB).tolist() == pytest.approx([0.04, 0.12])


def test_a_group_across_nodes_hands_on_what_it_fetched_over_their_link() -> None:
    """Two workers on two nodes: of 4 MB at 0.1 GB/s a fetch and a push, the sum of both, and the broadcast."""
    spec = TrainSpec.model_validate({"algorithm": {"name": "mixed", "group": 2}, "workers": 2})
    apart = cluster(between=0.1e9, switches=[{"devices": 1, "count": 2}])
    found = step_of(spec, WORK, Pace(0.1, 0.2, 0.0), fleet(2, on=apart, memory_is_shared=True))
    means, visits = found.exchanges
    assert means.total_s.tolist() == pytest.approx([0.04 + 0.04])
    assert visits.total_s.tolist() == pytest.approx([2 * 0.04])


def test_copies_are_counted_where_a_sum_is_made() -> None:
    """Each of two workers adds two halves up where the sum is to lie: 1.5/2 copies. Of three, of which two share
    memory, each copies its third, and the sum: (1 + 2 + 1)/3; or each of the two adds up half of the third that they
    send. Through memory an update reads the halves where they lie."""
    assert copies_of_sum(fleet(1, 2)).tolist() == pytest.approx([0.0, 0.75])
    uneven = fleet(3, on=cluster(switches=[{"devices": 2}, {"devices": 1}]), memory_is_shared=True)
    assert copies_of_sum(uneven).tolist() == pytest.approx([4 / 3])
    assert copies_of_sum(uneven, beside=True).tolist() == pytest.approx([2 / 3 + 1.5 / 6])
    assert copies_of_sum(fleet(2, memory_is_shared=True)).tolist() == [0.0]
    assert copies_of_average(fleet(1, 2)).tolist() == pytest.approx([0.0, 3 + 1.25])
    assert copies_of_average(fleet(2, memory_is_shared=True)).tolist() == pytest.approx([3 + 0.75])


@pytest.mark.parametrize(
    ("algorithm", "copies"),
    [
        ("sync", 0.75),
        ({"name": "sync", "reduction": "fast"}, 0.0),
        ({"name": "parallel_sgd", "average_every": 4}, 2 * 4.25 / 4),
        ({"name": "diloco", "average_every": 4}, (2.5 + 1 + 1.25 + 2.5) / 4),
        ({"name": "easgd", "tau": 4}, 6 / 4),
        ("downpour", 0.0),
    ],
    ids=str,
)
def test_what_a_step_copies_counts_as_computing(algorithm: Any, copies: float) -> None:
    spec = TrainSpec.model_validate({"algorithm": algorithm, "workers": 2})
    without, with_ = (step_of(spec, WORK, Pace(0.1, 0.2, 0.01, copy_s=one), fleet(2)) for one in (0.0, 0.002))
    assert with_.computing_s - without.computing_s == pytest.approx(copies * 0.002)


def test_in_buckets_each_worker_updates_its_share() -> None:
    fast = TrainSpec.model_validate({"algorithm": {"name": "sync", "reduction": "fast"}, "workers": 4})
    found = step_of(fast, WORK, Pace(0.1, 0.2, 0.04), fleet(1, 4))
    assert found.computing_s.tolist() == pytest.approx([0.34, 0.31])


def test_the_push_of_easgd_travels_while_the_next_steps_are_computed() -> None:
    """4 MB at 0.1 GB/s: of a fetch and a push every 4 steps the fetch is seen; `push: delta` fetches what it has just
    pushed."""
    pace, slow = Pace(0.1, 0.2, 0.0), cluster(inside=0.1e9)

    def seen(algorithm: dict[str, Any], link: Cluster = slow) -> float:
        spec = TrainSpec.model_validate({"algorithm": algorithm, "workers": 1, "ps": {"shards": 1}})
        return float(step_of(spec, WORK, pace, fleet(1, on=link)).exchanges[0].seen_s[0])

    assert seen({"name": "easgd", "tau": 4}) == pytest.approx(0.04 / 4)
    assert seen({"name": "downpour", "push": "delta", "steps": 4}) == pytest.approx(0.08 / 4)
    assert seen({"name": "downpour", "num_fetch": 2}) == pytest.approx(0.04 / 2 + 0.04 / 2)  # every second push
    slowest_ = cluster(inside=1e6)  # 4 s for a push, which 1.2 s of steps do not hide
    assert seen({"name": "easgd", "tau": 4}, slowest_) == pytest.approx((8 - 1.2) / 4)


def test_who_stands_beside_the_shards_waits_for_messages_and_updates() -> None:
    """On two nodes all shards stand on the second: a worker there exchanges 8 MB at 1 GB/s within the node, and waits
    for half an update of 10 ms; the other one 8 MB at 0.1 GB/s."""
    apart = cluster(inside=1e12, between=0.1e9, switches=[{"devices": 1, "count": 2}])
    links = {**{name: link.model_dump() for name, link in apart.links.items()}, "tcp": {"bandwidth": 1e9}}
    on = cluster_of(apart.model_dump() | {"links": links, "messages": "tcp"}, "c")
    spec = TrainSpec.model_validate({"algorithm": "downpour", "workers": 2})
    found = step_of(spec, WORK, Pace(0.1, 0.2, 0.01), fleet(2, on=on, memory_is_shared=True))
    share = float(fullest_share(spec, WORK.variables, np.array([2]))[0])
    near, far = (0.3 + seconds + 0.01 * share for seconds in (0.008, 0.08))
    assert found.rate[0] == pytest.approx(32 / near + 32 / far)


def test_whoever_computes_on_all_cores_misses_what_moves_vectors() -> None:
    """4 MB at 1 GB/s to a shard and as much back: 8 ms, in which a core moves 0.4 GB/s: 20 ms of work for 8 ms in which
    one's own core is free. The sums of 4 MB take 10 ms, of which a worker stands still for the last bucket alone."""
    busy = cluster(core=0.4e9, switches=[{"devices": 2}])
    spec = TrainSpec.model_validate({"algorithm": "downpour", "workers": 2, "ps": {"shards": 1}})
    pace = Pace(10.0, 20.0, 0.0)  # so long that nobody meets another at the shard
    assert step_of(spec, WORK, pace, fleet(2, on=busy)).seconds == pytest.approx(30.02, abs=1e-4)
    assert step_of(spec, WORK, pace, fleet(1, on=busy)).seconds == pytest.approx(30.008)
    assert step_of(spec, WORK, pace, fleet(2, on=busy, cores=4)).seconds == pytest.approx(30.008, abs=1e-4)
    fast = TrainSpec.model_validate({"algorithm": {"name": "sync", "reduction": "fast"}, "workers": 2})
    found = step_of(fast, WORK, pace, fleet(2, on=busy))
    seen = float(found.exchanges[0].seen_s[0])
    assert 0 < seen < 0.003
    assert found.computing_s == pytest.approx(30.01 - seen)  # 4 MB/0.4 GB/s, of which it stands still for so much


def test_what_a_worker_takes_for_its_rows_is_as_it_was_timed() -> None:
    """Of the passes 2/3 are of divided layers; rows of one worker take 0.7, since they are copied as well, those of two
    0.4 each and not a third, of four 0.25: as 0.1 + 0.6/W, and of eight 0.175."""
    spec = TrainSpec.model_validate({"algorithm": "spatial", "workers": 2})
    timed = HEAD.model_copy(update={"rows": {1: 0.7, 2: 0.4, 4: 0.25}})
    pace, quick = Pace(10.0, 20.0, 0.0), cluster(inside=1e15, between=1e15)
    for workers, counted, own in ((1, 2 / 3, 0.7), (2, 1 / 3, 0.4), (4, 1 / 6, 0.25), (8, 1 / 12, 0.175)):
        for work, share in ((HEAD, counted), (timed, own)):
            found = step_of(spec, work, pace, fleet(workers, on=quick, virtual=8))
            assert found.computing_s == pytest.approx(8 * 30 * (share + 1 / 3))


def test_all_that_send_within_a_node_share_what_several_reach() -> None:
    """1 GB/s by itself, 1.5 GB/s together; a described link, of which only the bandwidth is known, each has."""
    pair = cluster(links={"in": {"bandwidth": 1.5e9, "each": 1e9}, "out": {"bandwidth": 1e9}})
    assert fleet(1, 2, on=pair).lane().bytes_per_s.tolist() == pytest.approx([1e9, 0.75e9])
    assert fleet(2, on=pair).lane(all_at_once=False).bytes_per_s.tolist() == pytest.approx([1e9])
    assert fleet(2).lane().bytes_per_s.tolist() == pytest.approx([1e9])


def test_timed_layers_tell_when_a_bucket_is_ready_and_what_is_divided() -> None:
    """The last of three layers is timed to take half of each pass, not a third of it."""
    seconds = {n: LayerSeconds(forward_s=f, backward_s=b) for n, f, b in (("a", 1, 1), ("b", 1, 1), ("c", 2, 2))}
    timed = HEAD.model_copy(update={"seconds": seconds, "row_names": ("c",)})
    assert buckets_of(timed, 1)[1].tolist() == pytest.approx([0.5, 0.75, 1.0])
    assert buckets_of(timed, 1)[2].tolist() == pytest.approx([0.5, 0.25, 0.0])
    assert buckets_of(HEAD, 1)[1].tolist() == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert (HEAD.row_share, timed.row_share) == pytest.approx((6 / 9, 0.5))
    head = HEAD.model_copy(update={"seconds": seconds, "head": (HeadLayer(name="a", inputs=500, outputs=1000),)})
    assert (HEAD.head_share, head.head_share) == pytest.approx((3 / 9, 0.25))
    missing = timed.model_copy(update={"seconds": {"a": seconds["a"], "c": seconds["c"]}})
    assert missing.row_share == HEAD.row_share


def test_uneven_blocks_ship_more_parts() -> None:
    everybody, own = shipped_vectors(np.array([8, 8, 5]), np.array([2, 3, 2]))
    assert everybody.tolist() == [2, 5, 3]  # of 5 the second ships [2, 4) and [4, 5)
    assert own.tolist() == [1, 2, 2]


def test_compressed_vectors_go_from_each_worker_to_each_other() -> None:
    """Messages of 0.1 MB: each of 4 workers sends those of its two virtual workers to three others, and gets no more:
    0.6 MB at 1 GB/s, in 3 messages of 1 ms."""
    found = exchanged("gradients", fleet(1, 4, on=cluster(latency=1e-3), virtual=8), 0.1 * MB)
    assert found.total_s.tolist() == pytest.approx([0.0, 0.6e-3 + 3e-3])
    assert found.sent_bytes.tolist() == pytest.approx([0.0, 0.6 * MB])


@pytest.mark.parametrize("algorithm", ["sync", "diloco", "downpour"])
def test_a_step_with_compressed_gradients_sends_fewer_bytes_and_is_shorter(algorithm: str) -> None:
    """Of 1 M parameters 1 % in 8 bytes each, from one of 4 workers to the three others, or to the shards."""
    pace = Pace(0.004, 0.006, 0.001)
    steps = []
    for compress in (None, {"top_k": 0.01}):
        spec = TrainSpec.model_validate({"algorithm": algorithm, "workers": 4, "compress": compress})
        steps.append(step_of(spec, WORK, pace, fleet(4)))
    plain, found = (sum(float(e.sent_bytes[0]) for e in step.exchanges) for step in steps)
    every = 500 if algorithm == "diloco" else 1
    assert found == pytest.approx((1 if algorithm == "downpour" else 3) * 0.08 * MB / every)
    assert found < plain
    assert steps[1].rate[0] > steps[0].rate[0]


def test_of_local_sgd_only_parameters_are_compressed_and_of_a_group_only_its_push() -> None:
    """Of averages of 1 M parameters and as many velocities, every 4 steps; of streaming every fragment, by itself."""

    def sent(algorithm: dict[str, Any], compress: object) -> dict[str, float]:
        spec = TrainSpec.model_validate({"algorithm": algorithm, "workers": 4, "compress": compress})
        exchanges = step_of(spec, WORK, Pace(0.004, 0.006, 0.001), fleet(4)).exchanges
        return {exchange.name: float(exchange.sent_bytes[0]) for exchange in exchanges}

    local = {"name": "parallel_sgd", "average_every": 4}
    found, plain = (sum(sent(local, how).values()) for how in ({"top_k": 0.01}, None))
    assert found == pytest.approx(3 * 0.08 * MB / 4 + plain / 2)
    stream = {"name": "diloco", "average_every": 100, "fragments": 4, "delay": 5}
    assert sent(stream, {"top_k": 0.01}) == {"averages": pytest.approx(3 * 0.08 * MB / 100)}
    grouped = {"name": "mixed", "group": 2}
    found, plain = (sent(grouped, how) for how in ({"top_k": 0.01}, None))
    fewer = {name: plain[name] - found[name] for name in plain if plain[name] != found[name]}
    (saved,) = fewer.values()
    assert 0 < saved < sum(plain.values())


def test_what_passes_while_a_fragment_travels_is_hidden() -> None:
    """4 workers in steps of 10 ms, 6 MB of messages at 10 MB/s: 600 ms every 100 steps. In halves, each of which takes
    300 ms, 20 steps hide 200 of them; where a round is shorter than its messages, no more than the steps are hidden."""
    pace, slow = Pace(0.004, 0.006, 0.0), cluster(inside=10e6)

    def average(**config: Any) -> tuple[float, float]:
        spec = TrainSpec.model_validate({"algorithm": {"name": "diloco", **config}, "workers": 4})
        (found,) = step_of(spec, WORK, pace, fleet(4, on=slow)).exchanges
        return float(found.total_s[0]), float(found.seen_s[0])

    plain = average(average_every=100)
    assert plain == pytest.approx((0.006, 0.006))
    assert average(average_every=100, fragments=2) == pytest.approx(plain)
    assert average(average_every=100, fragments=2, delay=20) == pytest.approx((0.006, 0.002))
    assert average(average_every=100, fragments=2, delay=30) == pytest.approx((0.006, 0.0))
    assert average(average_every=30, fragments=2, delay=29) == pytest.approx((0.02, 0.01))


def test_the_fullest_shard_is_that_of_the_real_layout() -> None:
    spec = TrainSpec.model_validate({"algorithm": "downpour", "ps": {"placement": "round_robin"}})
    shares = fullest_share(spec, (1000, 10, 1000, 10), np.array([1, 2]))
    assert shares[0] == 1.0
    assert shares[1] > 0.95  # both large ones
    balanced = fullest_share(TrainSpec.model_validate({"algorithm": "downpour"}), (1000, 10, 1000, 10), np.array([2]))
    assert balanced[0] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("workers", "think", "service"), [(1, 1.0, 0.1), (4, 1.0, 0.1), (30, 1.0, 0.1), (99, 2.0, 0.1)]
)
def test_the_repairmans_model_is_exact(workers: int, think: float, service: float) -> None:
    """Against the probability that the shard is idle, 1 / sum of K!/(K - n)! (tau/T)^n."""
    terms = [math.exp(math.lgamma(workers + 1) - math.lgamma(workers - n + 1) + n * math.log(service / think))
             for n in range(workers + 1)]  # fmt: skip
    exact = (1 - 1 / sum(terms)) / service
    response = response_s(np.array([workers]), np.array([think]), np.array([service]))[0]
    assert workers / (think + response) == pytest.approx(exact)
    assert exact <= min(workers / (think + service), 1 / service) * (1 + 1e-12)


def test_the_corner_is_that_of_paper_2() -> None:
    assert corner(np.array([1.0]), np.array([0.01]))[0] == pytest.approx(101)  # T/tau = 100, and the one that is served


def test_the_last_of_many_is_late() -> None:
    late = slowest(np.array([1, 2, 100]))
    assert late[0] == 0
    assert late[1] == pytest.approx(0.564, abs=0.03)  # 1/sqrt(pi)
    assert late[2] == pytest.approx(2.508, abs=0.03)
    assert slowest(np.array([100]), np.array([90]))[0] < 1.4  # ten backup workers


ALGORITHMS: list[Any] = [
    "sync", {"name": "sync", "reduction": "fast"}, {"name": "sync", "reduction": "fast", "all_reduce": "three_phase"},
    {"name": "sync", "form": "parameter_server"}, "downpour", {"name": "downpour", "push": "layerwise", "num_fetch": 2},
    {"name": "mixed", "group": 2}, "hybrid", {"name": "hybrid", "scheme": "b"},
    {"name": "hybrid", "scheme": "bc", "fc_batch": "per_turn"}, {"name": "parallel_sgd", "average_every": 3}, "admm",
    {"name": "diloco", "average_every": 4}, {"name": "diloco", "average_every": 4, "fragments": 2, "delay": 1},
    {"name": "easgd", "tau": 4}, "spatial",
    {"name": "downpour", "push": "delta", "steps": 4}, {"name": "mixed", "group": 2, "push": "delta", "steps": 4},
    {"name": "admm", "form": "consensus"},
]  # fmt: skip
POSITIVE = st.floats(1e7, 1e11)
FASTER = st.floats(1.0, 20.0)


def seconds_of(algorithm: Any, on: Cluster, pace: Pace, shared: bool) -> Floats:
    spec = TrainSpec.model_validate({"algorithm": algorithm, "workers": 12, "batch": 8})
    placed = fleet(2, 4, 6, 12, on=on, virtual=12 if spec.algorithm.traits.is_synchronous else None)
    placed = Fleet(on, placed.workers, placed.virtual, placed.shards, memory_is_shared=shared)
    return step_of(spec, HEAD, pace, placed).seconds


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@settings(max_examples=15, deadline=None)
@given(
    inside=POSITIVE,
    between=POSITIVE,
    latency=st.floats(0, 1e-2),
    passes=st.floats(1e-4, 1.0),
    by=FASTER,
    shared=st.booleans(),
)
def test_nothing_faster_makes_a_prediction_slower(
    algorithm: Any, inside: float, between: float, latency: float, passes: float, by: float, shared: bool
) -> None:
    pace = Pace(passes / 3, 2 * passes / 3, passes / 10, passes / 20, spread=0.05, copy_s=passes / 15)
    parts = (pace.forward_s, pace.backward_s, pace.update_s, pace.data_s)
    quick = Pace(*(part / by for part in parts), spread=0.05, copy_s=pace.copy_s / by)
    for core in (None, min(inside, between) / 2):
        now = seconds_of(algorithm, cluster(inside, between, latency, core), pace, shared)
        assert np.all(now > 0)
        for on, faster in (
            (cluster(inside * by, between, latency, core), pace),
            (cluster(inside, between * by, latency, core), pace),
            (cluster(inside, between, latency / by, core), pace),
            (cluster(inside, between, latency, core and core * by), pace),
            (cluster(inside, between, latency, core), quick),
        ):
            assert np.all(seconds_of(algorithm, on, faster, shared) <= now * (1 + 1e-9))
