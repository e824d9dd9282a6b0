"""Links that transfers share fairly: each transfer flows at its max-min fair rate (Bertsekas and Gallager 1992, 6.5.2),
which changes whenever another one begins or ends.

Transfers over the same links flow at the same rate at any moment. So they are kept together, and each is through when
what has flowed for one of them since the beginning of time, `flowed`, reaches its own mark: a change of rates costs as
much as there are different routes, however many transfers there are.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from simpy import Environment, Event

DONE = 1e-12
"""Of a mark: so much nearer counts as reached, for rounding."""
INFINITY = float("inf")
MOST_KNOWN = 10_000
"""States of the network whose rates are kept."""


@dataclass(frozen=True)
class Route:
    """What a transfer uses."""

    links: tuple[str, ...]
    most: float = float("inf")
    """Units a second that it can have at most: what its sender's own card carries, say."""


def fair_rates(transfers: Mapping[Route, int], capacities: Mapping[str, float]) -> dict[Route, float]:
    """The max-min fair rate of one transfer on each route, units a second.

    Progressive filling: all rates grow alike until a link is full or a transfer has the most that it can have; those
    are then left at that, and the others grow on.

    Args:
        transfers: How many there are on each route.
        capacities: Of each link.
    """
    left, growing = dict(capacities), {route: number for route, number in transfers.items() if number}
    found: dict[Route, float] = {}
    while growing:
        users: dict[str, int] = {}
        for route, number in growing.items():
            for link in route.links:
                users[link] = users.get(link, 0) + number
        level = min((max(left[link], 0.0) / number for link, number in users.items()), default=float("inf"))
        level = min(level, *(route.most for route in growing))
        full = {link for link, number in users.items() if left[link] <= level * number * (1 + DONE)}
        still = {}
        for route, number in growing.items():
            if route.most <= level * (1 + DONE) or full.intersection(route.links):
                found[route] = level
                for link in route.links:
                    left[link] -= level * number
            else:
                still[route] = number
        assert len(still) < len(growing), "a transfer needs a link, or a most"
        growing = still
    return found


@dataclass
class _Crowd:
    """The transfers on one route."""

    flowed: float = 0.0
    """For each of them, since the beginning."""
    rate: float = 0.0
    marks: list[tuple[float, int, "Through"]] = field(default_factory=list)
    """A heap: at which `flowed` each is through."""


class Through(Event):
    """The end of a transfer, of which those who wait for it hear at once: the environment's queue would only bring it
    back at the same moment."""

    def happen(self) -> None:
        """Call back whoever waits."""
        self._ok, self._value = True, None
        callbacks, self.callbacks = self.callbacks, None  # type: ignore[assignment]  # as SimPy does
        for callback in callbacks:
            callback(self)


class Network:
    """Links between processes of a simulation."""

    def __init__(
        self, env: Environment, capacities: Mapping[str, float], watch: Callable[[int], None] = lambda several: None
    ) -> None:
        """
        Args:
            capacities: Units a second of each link.
            watch: Is told whenever it changes that no transfer, one, or several are under way: 0, 1 or 2.
        """
        self.env = env
        self.capacities = capacities
        self.watch, self.several = watch, 0
        self.crowds: dict[Route, _Crowd] = {}
        self.numbers = count()
        self.updated_s = 0.0
        self.wakes_s = INFINITY  # the earliest alarm; it may come too early, since transfers that begin slow the others
        self.is_waking = False  # whether rates follow anyway, once all who wait have gone on
        self.known: dict[tuple[int, ...], list[tuple[_Crowd, float]]] = {}  # rates by the transfers on each route

    def transfer(self, route: Route, units: float) -> Event:
        """Begin a transfer. The event happens when it is through."""
        if units <= 0:
            return self.env.event().succeed()
        done = Through(self.env)
        self._flow()
        crowd = self.crowds.get(route)
        if crowd is None:
            crowd = self.crowds[route] = _Crowd()
        heapq.heappush(crowd.marks, (crowd.flowed + units, next(self.numbers), done))
        if not self.is_waking:
            self._share()
        return done

    def _flow(self) -> None:
        """Bring what has flowed up to now."""
        now_s = self.env.now
        passed = now_s - self.updated_s
        self.updated_s = now_s
        for crowd in self.crowds.values():
            crowd.flowed += crowd.rate * passed

    def _share(self) -> None:
        """Give the transfers their rates, and wake up at the latest when the first of them is through."""
        state = tuple([len(crowd.marks) for crowd in self.crowds.values()])  # a list is quicker than a generator
        if (several := min(sum(state), 2)) != self.several:
            self.several = several
            self.watch(several)
        rates = self.known.get(state)
        if rates is None:
            rates = self._rates(state)
        first = INFINITY
        for crowd, rate in rates:
            crowd.rate = rate
            if crowd.marks and (left_s := (crowd.marks[0][0] - crowd.flowed) / rate) < first:
                first = left_s
        at_s = self.updated_s + first
        if at_s < self.wakes_s:
            self.wakes_s = at_s
            alarm = self.env.timeout(first, at_s)
            assert alarm.callbacks is not None
            alarm.callbacks.append(self._wake)

    def _rates(self, state: tuple[int, ...]) -> list[tuple[_Crowd, float]]:
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        found = fair_rates(dict(zip(self.crowds, state, strict=True)), self.capacities)
        rates = self.known[state] = [(crowd, found.get(route, 0.0)) for route, crowd in self.crowds.items()]
        return rates

    def _wake(self, alarm: Event) -> None:
        if alarm.value != self.wakes_s:
            return
        self.wakes_s = INFINITY
        self._flow()
        unseen_s = 2 * math.ulp(self.updated_s)  # so far the clock knows one other moment: who ends by then ends now
        through = list[Through]()
        for crowd in self.crowds.values():
            reached = crowd.flowed + DONE * (1.0 + crowd.flowed) + crowd.rate * unseen_s
            while crowd.marks and crowd.marks[0][0] <= reached:
                through.append(heapq.heappop(crowd.marks)[2])
        self.is_waking = True
        for done in through:
            done.happen()
        self.is_waking = False
        self._share()
