"""Collectives of workers on any nodes: one process group of torch.distributed a generation, gloo or NCCL.

The group is made from a prefix of the rendezvous and is nobody's global group, so that one generation can follow
another in the same process. What gloo lacks is a way to wake a call that stands still: neither `abort` nor
`shutdown` does it, and its sockets stay open while a call is under way. So every worker keeps a connection to the
rendezvous, which tells all the others when one of these ends, and waiting is done on a condition, not inside gloo.
"""

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.collectives.group_forming import Group, GroupConfig, GroupRendezvous, form_group, reason_of
from trainers.collectives.messages import Round, ThreadLane
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import ReducedSpan, Reduction
from trainers.collectives.reduction_tree import Node, TreeSum
from trainers.collectives.tcp_messages import TcpEndpoint, TcpMessages, listen
from trainers.errors import PeerLost
from trainers.links.encoding import DTYPES
from trainers.links.handle import Handle
from trainers.links.rendezvous import own_host, reach_rendezvous
from trainers.links.waiting import waiting
from trainers.optim.gradient import Gradient, TensorGradient

T = TypeVar("T")

GRACE_S = 0.5  # for what a peer had sent before it closed
POLL_S = 0.0002  # NCCL tells of its end only when asked


class ProcessGroupCollectives(Collectives):
    """K workers that share a prefix of the rendezvous.

    Vectors lie on `device`; on a GPU the calls are NCCL's, which all workers must enqueue in the same order.
    """

    def __init__(self, config: GroupConfig, given_up: Callable[[], bool] = lambda: False) -> None:
        """given_up: Whether to wait for the others no longer; asked while not all are there."""
        self.config = config
        self.rank, self.size, self.device = config.rank, config.size, config.device
        self.nodes = config.nodes or (0,) * config.size
        self.sums_by_itself = config.device.type == "cuda"  # NCCL's all-reduce; gloo's is no faster than ours
        self.sums_beside = config.device.type == "cpu" and config.size > 1
        self.subgroups = 0
        self.lanes: list[tuple[ThreadLane, TcpMessages]] = []
        self.inboxes: dict[Reduction, Inboxes] = {}
        self.news = threading.Condition()
        self.closed = False  # by this worker
        self.lost = False  # by a peer
        self.under_way: list[dist.Work] = []
        self.line = reach_rendezvous(config.store_address, config.join_timeout_s)
        self.meeting = GroupRendezvous(reach_rendezvous(config.store_address, config.join_timeout_s), config.prefix)
        listener, mine = listen(own_host(self.line), self.size)
        self.group: Group | None
        try:
            self.group, members = form_group(config, self.meeting, given_up, _packed(mine))
        except BaseException:
            listener.close()
            self.line.close()
            self.meeting.line.close()
            raise
        self.pieces = self._lane_of(listener, members)
        """On which vectors travel whose parts go to different workers, but on GPUs."""
        self.line.set_at_end(f"{config.prefix}/closed")
        threading.Thread(target=self._listen, name=f"listener of {config.prefix}", daemon=True).start()

    # -- calls ----------------------------------------------------------------------------------------------------

    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> Handle[None]:
        self._count_exchange(send, receive)
        outbox = torch.cat([tensor.reshape(-1) for tensor in send]).to(self.device)
        sizes = [tensor.numel() for tensor in receive]
        inbox = outbox.new_empty(sum(sizes))
        going, coming = torch.split(outbox, _sizes(send)), torch.split(inbox, sizes)

        def deliver() -> None:
            for own, came in zip(receive, coming, strict=True):
                own.copy_(came.view_as(own))

        if self.device.type == "cpu":
            return self._trade([(going, coming)], deliver)
        return self._begin(lambda group: [_exchange(group, outbox, _sizes(send), inbox, sizes)], deliver)

    def barrier(self, signal: int = 0) -> Handle[int]:
        largest = torch.tensor([signal], device=self.device)
        return self._begin(lambda group: [_maximum(group, largest)], lambda: int(largest.item()))

    def reduce_canonical(self, reduction: Reduction, parts: Sequence[Tensor]) -> Handle[Gradient]:
        """The parts leave as they lie, one exchange for the first of every worker, one for the second ..., and those
        that travel in fewer bytes apart from the others."""
        self._count_canonical(reduction)
        boxes = self.inboxes.get(reduction)
        if boxes is None:
            boxes = self.inboxes[reduction] = Inboxes(reduction, self.rank, self._width(reduction.numel), self.device)
        elif boxes.filling is not None:
            boxes.filling.wait()
        cuts = [cut.stop - cut.start for cut in self.shares(reduction.numel)]
        own = dict(zip(reduction.nodes(self.rank), parts, strict=True))

        def ordered() -> Gradient:
            return TreeSum(reduction.num_virtual, boxes.found)

        if self.device.type == "cpu":
            rounds = [(inbox.cuts_of(own, self.shares(reduction.numel)), inbox.rows) for inbox in boxes.all]
            boxes.filling = self._trade(rounds, ordered)
            return boxes.filling

        def exchanges(group: Group) -> list[dist.Work]:
            works = []
            for inbox in boxes.all:
                part = own[inbox.node] if inbox.node else inbox.vector[:0]
                works.append(_exchange(group, part, cuts if inbox.node else [0] * self.size, inbox.vector, inbox.sizes))
            return works

        boxes.filling = self._begin(exchanges, ordered)
        return boxes.filling

    def all_gather(self, vector: Tensor, signal: int = 0) -> Handle[int]:
        self._count_gather(vector.numel())
        cuts = self.shares(vector.numel())
        if self.device.type == "cpu":
            rows = [vector[cut] for cut in cuts]
            agreement = self.barrier(signal)
            return self._trade([([rows[self.rank]] * self.size, rows)], agreement.wait)
        largest = torch.tensor([signal], device=self.device)

        def broadcasts(group: Group) -> list[dist.Work]:
            works = [_broadcast(group, vector[cut], k) for k, cut in enumerate(cuts) if cut.stop > cut.start]
            return [*works, _maximum(group, largest)]

        return self._begin(broadcasts, lambda: int(largest.item()))

    def all_reduce_sum(self, vector: Tensor) -> Handle[None]:
        if self.device.type == "cpu":  # gloo's own takes half as long again, and adds in an order of its own
            return super().all_reduce_sum(vector)
        self._count_ring(vector.numel())
        return self._begin(lambda group: [group.allreduce([vector])], lambda: None)

    def sum_bucket(self, part: Tensor, bucket: slice) -> Handle[ReducedSpan]:
        """The library's all-reduce, after which every worker has the whole sum."""
        vector = part[bucket]
        self._count_ring(vector.numel())
        share = ReducedSpan(slice(0, vector.numel()), TensorGradient(vector))
        return self._begin(lambda group: [group.allreduce([vector])], lambda: share)

    def gather_buckets(self, vector: Tensor, buckets: Sequence[slice]) -> None:
        """Nothing is missing anywhere."""

    def broadcast(self, vector: Tensor, root: int) -> Handle[None]:
        self._count_broadcast(vector.numel(), root)
        return self._begin(lambda group: [_broadcast(group, vector, root)], lambda: None)

    def subgroup(self, ranks: Sequence[int]) -> "ProcessGroupCollectives | None":
        self.subgroups += 1
        if self.rank not in ranks:
            return None
        prefix = f"{self.config.prefix}/sub-{self.subgroups}-{'-'.join(map(str, ranks))}"
        nodes = tuple(self.nodes[rank] for rank in ranks)
        return ProcessGroupCollectives(
            replace(self.config, prefix=prefix, rank=list(ranks).index(self.rank), size=len(ranks), nodes=nodes)
        )

    def lane(self, index: int) -> ThreadLane:
        prefix, line, join_s = f"{self.config.prefix}/lane-{index}", self.meeting.line, self.config.join_timeout_s
        listener, mine = listen(own_host(line), self.size)
        line.set(f"{prefix}/{self.rank}", _packed(mine))
        return self._lane_of(listener, [line.get(f"{prefix}/{k}", join_s) for k in range(self.size)])

    def _lane_of(self, listener: socket.socket, members: Sequence[bytes]) -> ThreadLane:
        """One whose members listen where they said."""
        endpoints = [TcpEndpoint((host, port), token) for (host, port), token in map(json.loads, members)]
        messages = TcpMessages(self.rank, self.nodes, endpoints, listener, self.config.timeout_s, self.meter)
        lane = ThreadLane(messages, self)
        self.lanes.append((lane, messages))
        return lane

    def close(self) -> None:
        with self.news:
            if self.closed:
                return
            self.closed = True
            group, self.group = self.group, None
            works, self.under_way = [work for work in self.under_way if not work.is_completed()], []
            self.news.notify_all()
        for lane, _ in self.lanes:
            lane.close()
        self.line.close()
        self.meeting.line.close()
        self.inboxes.clear()
        if self.device.type == "cuda" and group is not None:
            group.abort()
        elif works:
            # To let go of a group joins its threads, which a call under way holds up until its time is over.
            threading.Thread(target=_bury, args=([group], works), daemon=True).start()

    def _count_ring(self, numel: int) -> None:
        """Of the library's all-reduce, taken for a ring, in which each sends to the next as much as it receives."""
        shared = 2 * (numel - self._width(numel))
        self.meter.count_vectors(shared, shared, shared * ((self.rank + 1) % self.size in self._elsewhere))

    # -- waiting --------------------------------------------------------------------------------------------------

    def _begin(self, start: Callable[[Group], list[dist.Work]], result: Callable[[], T]) -> Handle[T]:
        failure: RuntimeError | None = None
        works: list[dist.Work] = []
        try:
            if self.group is not None:
                works = start(self.group)
        except RuntimeError as error:
            failure = error
        self.under_way = [work for work in self.under_way if not work.is_completed()] + works

        def finish() -> T:
            with waiting(self):
                try:
                    if failure is not None:
                        raise failure
                    for work in works:
                        self._stand_still(work)
                        work.wait()
                except RuntimeError as error:
                    self.line.close()  # so that peers which only wait for this one are told too
                    raise PeerLost(f"a peer of worker {self.rank} is gone: {reason_of(error)}") from error
            if self.closed:
                raise PeerLost("the group was closed")
            return result()

        return Handle(finish)

    def _trade(self, rounds: Sequence[Round], result: Callable[[], T]) -> Handle[T]:
        """gloo's own exchange mostly uses a slow link one way after the other: see the guide's page on transports."""
        plain = [([*map(_plain, send)], [*map(_plain, receive)]) for send, receive in rounds]
        traded = self.pieces.begin(lambda messages: messages.trade(plain))

        def finish() -> T:
            try:
                traded.wait()
            except PeerLost:
                self.line.close()  # so that peers which only wait for this one are told too
                raise
            return result()

        return Handle(finish)

    def _stand_still(self, work: dist.Work) -> None:
        """Until the work has ended, well or badly; PeerLost if that can no longer be expected."""
        ended = work.is_completed if self.device.type == "cuda" else _told_of(work, self.news)
        poll_s = POLL_S if self.device.type == "cuda" else None
        deadline = time.monotonic() + self.config.timeout_s
        with self.news:
            while not (ended() or self.closed or self.lost):
                self.news.wait(poll_s)
                if poll_s and time.monotonic() > deadline:
                    raise PeerLost(f"a peer of worker {self.rank} did not answer within {self.config.timeout_s:g} s")
            if self.lost:
                self.news.wait_for(lambda: ended() or self.closed, GRACE_S)
            if not ended():
                raise PeerLost("the group was closed" if self.closed else f"a peer of worker {self.rank} closed")

    def _listen(self) -> None:
        """Until the first member has closed, or this one has."""
        try:
            self.line.get(f"{self.config.prefix}/closed")
        except PeerLost:
            return  # without a rendezvous a group goes on, as without a coordinator
        with self.news:
            self.lost = True
            self.news.notify_all()
        for _, messages in self.lanes:
            messages.lose()


@dataclass(frozen=True)
class Inbox:
    """Where the i-th part of every worker arrives that has so many."""

    node: Node | None
    """This worker's i-th."""
    sizes: list[int]
    """Elements by worker."""
    vector: Tensor

    @cached_property
    def rows(self) -> Sequence[Tensor]:
        """What arrives from each worker."""
        return torch.split(self.vector, self.sizes)

    def cuts_of(self, own: dict[Node, Tensor], cuts: Sequence[slice]) -> list[Tensor]:
        """What goes to each worker: its share of this worker's part, if this one has so many."""
        part = own[self.node] if self.node else None
        return [self.vector[:0] if part is None else part[cut] for cut in cuts]


class Inboxes:
    """Where the parts of a reduction arrive."""

    def __init__(self, reduction: Reduction, rank: int, width: int, device: torch.device) -> None:
        """width: elements of this worker's share."""
        self.all: list[Inbox] = []
        self.filling: Handle[Gradient] | None = None
        self.found: dict[Node, Tensor] = {}
        for wire in reduction.nodes_by_wire(rank):
            nodes = [reduction.nodes_by_wire(k)[wire] for k in range(reduction.size)]
            for ith in itertools.zip_longest(*nodes):
                sizes = [width if node else 0 for node in ith]
                vector = torch.empty(sum(sizes), dtype=DTYPES[wire], device=device)
                self.all.append(Inbox(ith[rank], sizes, vector))
                self.found |= {node: row for node, row in zip(ith, torch.split(vector, sizes), strict=True) if node}


def _exchange(
    group: Group, send: Tensor, send_sizes: list[int], receive: Tensor, receive_sizes: list[int]
) -> dist.Work:
    return group.alltoall_base(receive, send, receive_sizes, send_sizes)


def _broadcast(group: Group, vector: Tensor, root: int) -> dist.Work:
    options = dist.BroadcastOptions()
    options.rootRank = root
    return group.broadcast([vector], options)


def _maximum(group: Group, number: Tensor) -> dist.Work:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return group.allreduce([number], options)


def _told_of(work: dist.Work, news: threading.Condition) -> Callable[[], bool]:
    """Have `news` notified when the work has ended; asks whether it has."""
    future = work.get_future()

    def tell(_: object) -> None:
        with news:
            news.notify_all()

    future.add_done_callback(tell)
    return future.done


def _bury(group: list[Group], works: list[dist.Work]) -> None:
    """Let go of a group once no call is under way any more.

    It waits in Python, since a process that ends while one of its threads is inside the library would abort.
    """
    for work in works:
        news = threading.Condition()
        ended = _told_of(work, news)
        with news:
            news.wait_for(ended)
    group.clear()


def _packed(endpoint: TcpEndpoint) -> bytes:
    return json.dumps(astuple(endpoint)).encode()


def _plain(vector: Tensor) -> Tensor:
    """The same memory, as numbers that numpy knows."""
    return vector.view(torch.int16) if vector.dtype == torch.bfloat16 else vector


def _sizes(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]
