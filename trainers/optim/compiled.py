"""What update rules are made of that Numba compiles, for one pass over memory.

torch's operations read and write each vector once an operation. A compiled rule reads each element once and writes it
once. It rounds where torch's operations round, and treats an element alike wherever it stands, so that the bits depend
neither on a cut nor on which of the two made them.

Each kernel spells out its loop, because Numba keeps no compiled function that was given another one. It compiles a kept
one anew when the file of that changes: whoever changes `fma`, `summed` or `mean` here touches the files of the
kernels, too.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numba
import numpy as np
from numba import boolean, float32, types
from numba.extending import intrinsic
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Mean, OnePass, Step

jit: Any = partial(numba.njit, nogil=True, error_model="numpy")  # other threads run; x / 0 is what IEEE 754 says
inlined: Any = partial(jit, inline="always")
"""Into the loop: in a function of its own, where two vectors may be the same memory is seen too late to use vector
instructions."""

VECTOR = float32[::1]
OPTIONS = (VECTOR, boolean, boolean, boolean, boolean)
NO_STATE = types.void(*[VECTOR] * 4, *OPTIONS)
ONE_STATE = types.void(*[VECTOR] * 6, *OPTIONS)
"""Signatures of the kernels of `Compiled`, by the number of states."""


@cast(Any, intrinsic)  # type: ignore[untyped-decorator]
def fma(_: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once, as torch's operations with an `alpha` do it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return float32(float32, float32, float32), generate


def kept(signature: Any) -> Any:
    """Compile a function of this signature for this processor, once: it is kept beside its file or in the user's
    folder, if one can be written."""

    def compiled(function: Any) -> Any:
        try:
            return jit(signature, cache=True)(function)
        except RuntimeError:
            return jit(signature)(function)

    return compiled


@inlined  # type: ignore[untyped-decorator]
def summed(one: Any, other: Any, adds: bool) -> Any:
    """An element of the sum, from those of two vectors, or from that of one."""
    return one + other if adds else one


@inlined  # type: ignore[untyped-decorator]
def mean(total: Any, w: Any, factors: Any, divides: bool, decays: bool) -> Any:
    """An element of the gradient, from that of the sum and its parameter w; `factors` begin as those of `Compiled`."""
    g = total / factors[0] if divides else total * factors[1]
    g = g * factors[2]
    return fma(w, factors[3], g) if decays else g


class Compiled(OnePass):
    """A compiled rule, from gradients to the next parameters."""

    adds = True

    def __init__(self, kernel: Any, names: Sequence[str], constants: Callable[[Step], Sequence[float]]) -> None:
        """
        Args:
            kernel: Takes two gradients (n,), the parameters and each state, and the next ones likewise; factors:
                divisor, 1 / divisor, scale, weight decay, and the constants; whether to add the second gradient to the
                first; whether to divide, where not by a power of two; whether there is weight decay; and whether the
                next ones are the same memory.
            names: Of the states.
            constants: Of the rule, in a step.
        """
        self.kernel, self.names, self.constants = kernel, names, constants

    def __call__(self, current: Buffers, gradients: Sequence[Tensor], following: Buffers, step: Step, of: Mean) -> None:
        both = [gradients[0].numpy(), gradients[-1].numpy()]
        vectors = [*both, *self._vectors(current), *self._vectors(following)]
        factors = np.array((of.divisor, 1 / of.divisor, of.scale, of.decay, *self.constants(step)), np.float32)
        divides = math.frexp(of.divisor)[0] != 0.5  # a product with 1/2, 1/4 ... has the same bits, and is faster
        adds, in_place = len(gradients) > 1, current.place == following.place
        if not step.exempt or not of.decay:
            self.kernel(*vectors, factors, adds, divides, of.decay != 0, in_place)
            return
        edges = [0, *(edge for part in step.exempt for edge in (part.start, part.stop)), len(both[0])]
        for place, (start, stop) in enumerate(pairwise(edges)):
            cut = [vector[start:stop] for vector in vectors]
            self.kernel(*cut, factors, adds, divides, place % 2 == 0, in_place)

    def _vectors(self, version: Buffers) -> list[Any]:
        return [version.params.numpy(), *(version.state[name].numpy() for name in self.names)]
