"""The update of a slice in one pass: sum, division, weight decay and rule for one chunk after the other, in the cache.

This reads a gradient of many megabytes only once, at the speed of the memory. Operations on the whole vector would each
read and write it again.
"""

import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.ema import EMA
from trainers.optim.gradient import Gradient
from trainers.optim.optimizer import Group, Optimizer
from trainers.optim.parameter import Parameter
from trainers.optim.rule import Mean, OnePass, ParameterRule, ParameterStep, Rule, Step, UpdateRule
from trainers.optim.slices import ALIGN, aligned, within
from trainers.spans import span

CHUNK = 128 * 1024
"""Elements per chunk on a CPU: half a dozen such float32 vectors fit in the shared cache, and the overhead of torch (2
us per operation) is small against the work. Measured against 16 K to 512 K elements."""

PLACES = 32
"""Versions whose pieces are kept. A worker has two, a shard one for each row of its ring and each of two states."""


@dataclass(frozen=True)
class Contribution:
    """What one update needs: a gradient, what to divide it by, and the learning rate."""

    gradient: Gradient
    divisor: float
    """The weight of the examples if the gradient is a sum over them; 1 if it is a mean already."""
    lr: float
    decays: int = 1
    """Factor of the weight decay: the number of minibatches whose gradients were accumulated."""
    correction: float = 1.0
    """`momentum_correction` from the last learning rate to `lr`."""
    seen: int = 0
    """Examples trained before, which groups with a schedule of their own go by."""
    scale: float = 1.0
    """By what the mean gradient is multiplied to keep its norm within `clip.norm`."""
    fetched: Tensor | None = None
    """(n,) the parameters that the gradient was computed from, where it may have come late (`Optimizer.late`); None:
    those that it meets."""


@dataclass(frozen=True)
class Piece:
    """Adjacent parameters of one group in one chunk, or one parameter that is updated as a whole."""

    group: Group
    computed: slice
    """The piece, extended to multiples of ALIGN: so an element goes through the same vector instructions wherever the
    vector is cut."""
    own: int
    """The first element that is the piece's own."""
    edges: tuple[slice, ...]
    """What of `computed` belongs to the neighbours, and stays as they leave it."""
    exempt: tuple[slice, ...]
    """Parts of `computed` without weight decay, counted from its start."""
    parameter: Parameter | None = None
    """Where the rule takes parameters one by one."""

    @cached_property
    def length(self) -> int:
        """Of `computed`."""
        return int(self.computed.stop - self.computed.start)


class SliceUpdate:
    """Applies contributions to a slice of n elements, one after the other."""

    def __init__(self, optimizer: Optimizer, numel: int, device: torch.device) -> None:
        """optimizer: of the slice (`Optimizer.within`)."""
        self.optimizer = optimizer
        if isinstance(optimizer.rule, ParameterRule):
            self.pieces = _whole(optimizer, numel)
        else:
            self.pieces = _chunks(optimizer, numel, CHUNK if device.type == "cpu" else numel)
        self.shares_passes = not isinstance(optimizer.rule, ParameterRule)
        """Whether several contributions in one call cost less than one call for each."""
        lengths = {piece.length for piece in self.pieces}
        longest = max(lengths, default=0)
        scratch = torch.empty(longest, device=device)
        self.scratches = {length: scratch[:length] for length in lengths}  # a view costs as much as a short operation
        self.compensated = torch.empty(0 if optimizer.late is None else longest, device=device)
        self.sees_steps = optimizer.late is not None and optimizer.late.sees_steps
        self.before = torch.empty(longest if self.sees_steps else 0, device=device)
        self.in_one_pass = self._compiled(device)
        self.uncut = _chunks(optimizer, numel, numel) if self._is_one_pass(device) else []
        self.parts: dict[tuple[int, ...], list[Buffers]] = {}  # place of a version -> its pieces

    def _compiled(self, device: torch.device) -> dict[Rule, OnePass]:
        """The compiled form of each rule that has one, where a gradient needs nothing but what that does."""
        clip = self.optimizer.clip
        if self.optimizer.late is not None or (clip is not None and clip.value is not None):
            return {}
        if device.type != "cpu" and importlib.util.find_spec("triton") is None:
            return {}
        rules = {piece.group.rule for piece in self.pieces}
        found = {rule: rule.in_one_pass(device) for rule in rules if isinstance(rule, UpdateRule)}
        return {rule: compiled for rule, compiled in found.items() if compiled is not None}

    def _is_one_pass(self, device: torch.device) -> bool:
        """Whether nothing but a compiled rule goes over the memory, so that no vector is met again in the cache."""
        rules = {piece.group.rule for piece in self.pieces}
        return device.type == "cpu" and self.optimizer.ema is None and rules <= self.in_one_pass.keys()

    def apply(self, contributions: Sequence[Contribution], current: Buffers, following: Buffers) -> None:
        """Apply the contributions to `current` and write the result into `following`.

        Several contributions in one call give the same bits as one call for each.
        """
        with span("update"):
            self._apply_all(contributions, current, following)

    def _apply_all(self, contributions: Sequence[Contribution], current: Buffers, following: Buffers) -> None:
        pieces = self._pieces(contributions)
        both = self._parts(current, pieces), self._parts(following, pieces)
        for piece, now, then in zip(pieces, *both, strict=True):
            kept = _kept(piece, current, following) if piece.edges else ()
            self._apply(piece, contributions, now, then)
            for elements, before in kept:
                elements.copy_(before)

    def _pieces(self, contributions: Sequence[Contribution]) -> list[Piece]:
        """Uncut where each vector is met once: after a backward pass a chunk costs 100 us beside its arithmetic, which
        was a third of an update."""
        is_met_once = len(contributions) == 1 and bool(contributions[0].gradient.where_it_lies(0, 0))
        return self.uncut if self.uncut and is_met_once else self.pieces

    def _parts(self, version: Buffers, pieces: list[Piece]) -> list[Buffers]:
        """Each of these pieces of a version, made once: a view costs as much as an operation on a short vector. A piece
        keeps its memory, so at the same place there are no others later."""
        key = (len(pieces), *version.place)
        found = self.parts.get(key)
        if found is None:
            if len(self.parts) >= PLACES:
                self.parts.clear()
            found = self.parts[key] = [version.part(piece.computed) for piece in pieces]
        return found

    def _apply(self, piece: Piece, contributions: Sequence[Contribution], newest: Buffers, target: Buffers) -> None:
        in_one_pass = self.in_one_pass.get(piece.group.rule)
        for contribution in contributions:
            lr = contribution.lr * piece.group.rate_at(contribution.seen)
            if in_one_pass is not None:
                gradients = self._gradients(piece, contribution, in_one_pass.fuses)
                decay = piece.group.weight_decay * contribution.decays
                mean = Mean(contribution.divisor or 1.0, contribution.scale, decay, contribution.gradient.pull)
                in_one_pass(newest, gradients, target, Step(lr, contribution.correction, exempt=piece.exempt), mean)
            else:
                self._apply_by_operations(piece, contribution, lr, newest, target)
            self._follow(newest, target, is_first=not contribution.seen)
            newest = target

    def _apply_by_operations(
        self, piece: Piece, contribution: Contribution, lr: float, newest: Buffers, target: Buffers
    ) -> None:
        group, rule = piece.group, piece.group.rule
        g = self._mean_gradient(piece, contribution, newest, target)
        if self.sees_steps:
            before = self.before[: len(g)]
            before.copy_(newest.params)  # `target` may be the same memory
        if piece.parameter is not None:
            assert isinstance(rule, ParameterRule)
            decay = 0.0 if piece.exempt else group.weight_decay * contribution.decays
            rule.apply(newest, g, target, ParameterStep(piece.parameter, lr, decay, bool(piece.exempt)))
        else:
            assert isinstance(rule, UpdateRule)
            decay = lr * group.weight_decay * contribution.decays if rule.decouples_decay else 0.0
            rule.apply(newest, g, target, Step(lr, contribution.correction, 1 - decay, piece.exempt))
        if self.sees_steps:
            assert self.optimizer.late is not None
            self.optimizer.late.follow(torch.sub(target.params, before, out=before), newest.state, target.state)

    def _gradients(self, piece: Piece, contribution: Contribution, fuses: bool) -> Sequence[Tensor]:
        """What a compiled rule reads: the vectors that the gradient lies in, where it fuses them; else the gradient."""
        lies = contribution.gradient.where_it_lies(piece.computed.start, piece.computed.stop) if fuses else ()
        return lies or (self._total(piece, contribution, self.scratches[piece.length]),)

    def _total(self, piece: Piece, contribution: Contribution, out: Tensor | None = None) -> Tensor:
        """The sum of the gradients of a piece."""
        return contribution.gradient.piece(piece.computed.start, piece.computed.stop, out)

    def _follow(self, newest: Buffers, target: Buffers, is_first: bool) -> None:
        """Let the average follow the parameters of `target`; it begins with those of the first update, and has the
        operations of `torch.optim.swa_utils.get_ema_multi_avg_fn`."""
        ema = self.optimizer.ema
        if ema is not None and is_first:
            target.state[EMA].copy_(target.params)
        elif ema is not None:
            torch.lerp(newest.state[EMA], target.params, 1 - ema.decay, out=target.state[EMA])

    def _mean_gradient(self, piece: Piece, contribution: Contribution, newest: Buffers, target: Buffers) -> Tensor:
        """The gradient of a piece, divided by the examples in it and clipped, with the weight decay of the newest
        parameters added."""
        w, scratch = newest.params, self.scratches[piece.length]
        out = None if piece.exempt else scratch  # which are divided once more
        total = self._total(piece, contribution, out)
        if self.optimizer.late is not None:
            fetched = w if contribution.fetched is None else contribution.fetched[piece.computed]
            into = self.compensated[: len(w)]
            total = self.optimizer.late.apply(total, w, fetched, newest.state, target.state, into)
        decay, rule = piece.group.weight_decay, piece.group.rule
        g = self._mean(total, contribution, scratch)
        if decay and isinstance(rule, UpdateRule) and not rule.decouples_decay:
            g = torch.add(g, w, alpha=decay * contribution.decays, out=scratch)
            # Added to every element and then taken back where it is not wanted: whether an element goes through a
            # vector instruction must not depend on its neighbours, and a division gives the same bits either way.
            for part in piece.exempt:
                scratch[part].copy_(self._mean(total[part], contribution, scratch[part]))
        return g

    def _mean(self, total: Tensor, contribution: Contribution, scratch: Tensor) -> Tensor:
        """A summed gradient, divided and clipped: itself where that changes nothing, else in `scratch`."""
        g, clip = total, self.optimizer.clip
        divisor = contribution.divisor or 1.0  # where nothing weighs anything, the gradient is 0
        if divisor != 1:
            g = torch.div(g, divisor, out=scratch)
        if contribution.scale != 1:
            g = torch.mul(g, contribution.scale, out=scratch)
        if clip is not None and clip.value is not None:
            g = torch.clamp(g, -clip.value, clip.value, out=scratch)
        return g


def _kept(piece: Piece, current: Buffers, following: Buffers) -> list[tuple[Tensor, Tensor]]:
    """The elements of neighbours that a piece computes too, with copies of what they are."""
    both = zip(current.vectors, following.vectors, strict=True)
    vectors = [(after, before.data_ptr() == after.data_ptr()) for before, after in both]
    kept: list[tuple[Tensor, Tensor]] = []
    for edge, (vector, is_read) in itertools.product(piece.edges, vectors):
        kept.append((vector[edge], vector[edge].clone()))
        if is_read:  # neighbours may be an update ahead, which must not show in a rule's state
            vector[edge] = vector[piece.own]
    return kept


def _whole(optimizer: Optimizer, numel: int) -> list[Piece]:
    """A piece for each parameter."""
    return [
        Piece(group, p.span, p.start, (), within(optimizer.exempt, p.span), p)
        for p in optimizer.parameters
        for group in optimizer.by_group(numel)
        if any(span.start <= p.start < span.stop for span in group.spans)
    ]


def _chunks(optimizer: Optimizer, numel: int, chunk: int) -> list[Piece]:
    """Pieces of at most `chunk` elements."""
    return [
        _piece(group, span, slice(start, min(start + chunk, numel)), optimizer.exempt)
        for start in range(0, numel, max(chunk, 1))
        for group in optimizer.by_group(numel)
        for span in within(group.spans, slice(start, start + chunk))
    ]


def _piece(group: Group, span: slice, chunk: slice, exempt: Sequence[slice]) -> Piece:
    """span: counted from the start of the chunk, as the chunk is from that of the slice."""
    start, stop = chunk.start + span.start, chunk.start + span.stop
    computed = slice(start // ALIGN * ALIGN, min(aligned(stop), chunk.stop))
    edges = (slice(computed.start, start), slice(stop, computed.stop))
    return Piece(group, computed, start, tuple(e for e in edges if e.start < e.stop), within(exempt, computed))
