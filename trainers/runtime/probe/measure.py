"""Measures the links of the connected cluster: each transport, on each node and between each pair of nodes."""

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ray

from trainers.cost.clusters.links import LinkNode, LinkPoint, LinkTable, LinkTransport, MeasuredLink
from trainers.errors import PeerLost, RunFailed
from trainers.runtime import fork_server
from trainers.runtime.nodes import on_node
from trainers.runtime.probe.link_end import LinkEnd, Transferred

SIZES = (4096, 65_536, 1_048_576, 16_777_216)
"""Bytes of a vector."""
AT_ONCE = (1, 2, 4)
WINDOW_S, SHORTEST_S = 0.2, 0.03
"""For one size; shorter ones tell little."""
BUDGET_S = 40.0
"""For all, beside the start of the processes."""
READY_S = 120.0


class Place(NamedTuple):
    """A node to be measured."""

    node_id: str
    address: str


class Case(NamedTuple):
    """One transport, from one node to another or the same, with so many pairs at once."""

    transport: LinkTransport
    source: Place
    target: Place
    at_once: int


def measure_links(
    at_once: Sequence[int] = AT_ONCE, budget_s: float = BUDGET_S, on_done: Callable[[int, int], None] = lambda *_: None
) -> LinkTable:
    """Measure them, one after the other, in about a minute.

    In a cluster of so many nodes that there is no time for each pair, each node is measured with the next one.

    Args:
        at_once: Numbers of transfers that go on at the same time.
        budget_s: For all transfers; those of large vectors over slow links may take longer.
        on_done: Called after each case with the number of those that are done and of all.

    Raises:
        RunFailed: A node died meanwhile, or cannot reach another one; with their addresses.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = [Place(node["NodeID"], node["NodeManagerAddress"]) for node in nodes]
    pairs = list(itertools.combinations(places, 2))
    longest = SHORTEST_S * (len(SIZES) + 1) * len(at_once)
    chosen = pairs
    if len(places) > 3 and longest * (3 * len(places) + 2 * len(pairs)) > budget_s:
        chosen = [*itertools.pairwise(places), (places[-1], places[0])]
    cases = list(_cases(places, chosen, at_once))
    window_s = min(WINDOW_S, budget_s / (len(cases) * (len(SIZES) + 1)))
    with _Ends(max(at_once)) as ends:
        links = list[MeasuredLink]()
        for case in cases:
            links.append(ends.measure(case, window_s))
            on_done(len(links), len(cases))
    resources = [node["Resources"] for node in nodes]
    described = (
        LinkNode(address=place.address, cpus=int(has.get("CPU", 0)), gpus=int(has.get("GPU", 0)))
        for place, has in zip(places, resources, strict=True)
    )
    return LinkTable(nodes=tuple(described), links=tuple(links), pairs_left_out=len(pairs) - len(chosen))


def _cases(places: Sequence[Place], pairs: Sequence[tuple[Place, Place]], at_once: Sequence[int]) -> Iterator[Case]:
    near: tuple[LinkTransport, ...] = ("shared_memory", "process_group", "object_store")
    for place, transport, count in itertools.product(places, near, at_once):
        yield Case(transport, place, place, count)
    for (source, target), transport, count in itertools.product(pairs, near[1:], at_once):
        yield Case(transport, source, target, count)


class _Ends:
    """The processes on all nodes, started where they are first needed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.ends: dict[tuple[str, str], list[Any]] = {}
        self.folder = f"links-{secrets.token_hex(4)}"
        self.formed = itertools.count()

    def __enter__(self) -> "_Ends":
        return self

    def __exit__(self, *error: object) -> None:
        for (_, role), ends in self.ends.items():
            if role == "sends":
                ray.wait([ends[0].clean.remote(self.folder)], timeout=5)
            for end in ends:
                ray.kill(end)

    def measure(self, case: Case, window_s: float) -> MeasuredLink:
        """All pairs of a case at the same time; a size's seconds are the mean over them."""
        senders = self._of(case.source, "sends")[: case.at_once]
        receivers = self._of(case.target, "receives")[: case.at_once]
        try:
            found = self._seconds(case, list(zip(senders, receivers, strict=True)), window_s)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if not isinstance(cause, OSError | PeerLost):
                raise
            raise RunFailed(
                f"{case.source.address} cannot reach {case.target.address} by {case.transport}: {cause}; a run needs "
                "that too, so open the ports between the nodes, then measure again"
            ) from None
        except ray.exceptions.RayError as error:
            raise RunFailed(
                f"a process on {case.source.address} or {case.target.address} died while the links between them were "
                f"measured; measure again ({str(error).splitlines()[0]})"
            ) from None
        machines = len({*ray.get([end.machine.remote() for end in (senders[0], receivers[0])])})
        points = tuple(
            LinkPoint(
                num_bytes=size,
                seconds=sum(seconds for seconds, _ in each) / len(each),
                # Each sender has counted what its machine did for all; the receivers' does as much.
                cpu_s=machines * sum(busy_s for _, busy_s in each) / len(each) / case.at_once,
            )
            for size, each in zip(SIZES, zip(*found, strict=True), strict=True)
        )
        return MeasuredLink(
            transport=case.transport, source=case.source.address, target=case.target.address, at_once=case.at_once,
            points=points,
        )  # fmt: skip

    def _seconds(self, case: Case, pairs: list[tuple[Any, Any]], window_s: float) -> list[list[Transferred]]:
        match case.transport:
            case "shared_memory":
                adding = list[Any]()
                for pair in pairs:
                    folder = str(next(self.formed))
                    adding += [end.add_up.remote(self.folder, folder, rank, SIZES) for rank, end in enumerate(pair)]
                return list(ray.get(adding))
            case "process_group":
                addresses = ray.get([receiver.listen.remote() for _, receiver in pairs])
                serving = [receiver.accept.remote() for _, receiver in pairs]
                sending = [
                    sender.send.remote(address, SIZES, window_s)
                    for (sender, _), address in zip(pairs, addresses, strict=True)
                ]
                found: list[list[Transferred]] = ray.get(sending)
                ray.get(serving)
                return found
            case "object_store":
                return list(ray.get([sender.put.remote(receiver, SIZES, window_s) for sender, receiver in pairs]))

    def _of(self, place: Place, role: str) -> list[Any]:
        """The ends of a node that send, or receive."""
        key = place.node_id, role
        if key not in self.ends:
            warm = fork_server.environment(None, threads=1)
            actor = ray.remote(num_cpus=0, max_restarts=0, runtime_env=warm)(LinkEnd)
            self.ends[key] = [actor.options(**on_node(place.node_id)).remote() for _ in range(self.most)]
            try:
                ray.get([end.__ray_ready__.remote() for end in self.ends[key]], timeout=READY_S)
            except ray.exceptions.RayError as error:
                why = str(error).splitlines()[0]
                raise RunFailed(f"no process starts on {place.address} within {READY_S:g} s: {why}") from None
        return self.ends[key]
