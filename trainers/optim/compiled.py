"""What update rules are made of that Numba compiles, for one pass over memory.

torch's operations read and write each vector once an operation. A compiled rule reads each element once and writes it
once. It rounds where torch's operations round, and treats an element alike wherever it stands, so that the bits depend
neither on a cut nor on which of the two made them.

Each kernel spells out its loop, because Numba keeps no compiled function that was given another one. It compiles a kept
one anew when the file of that changes: whoever changes `fma` or `gradient` here touches the files of the kernels,
too.
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
tuple_of: Any = types.UniTuple
GIVEN = tuple_of(VECTOR, 3)
OPTIONS = (VECTOR, tuple_of(boolean, 4), boolean)
NO_STATE = types.void(GIVEN, *[VECTOR] * 2, *OPTIONS)
ONE_STATE = types.void(GIVEN, *[VECTOR] * 4, *OPTIONS)
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
def gradient(given: Any, i: int, w: Any, factors: Any, how: Any) -> Any:
    """Element i of the gradient, whose parameter is w; the others are those of the kernels of `Compiled`.

    Written so that the compiler takes the questions out of the loop: of a number instead of booleans, or one after the
    other, it does not, and uses no vector instructions.
    """
    adds, pulls, divides, decays = how
    total = (
        (w - given[1][i] + given[2][i]) * factors[4] + given[0][i]
        if pulls
        else (given[0][i] + given[1][i] if adds else given[0][i])
    )
    g = total / factors[0] if divides else total * factors[1]
    g = g * factors[2]
    return fma(w, factors[3], g) if decays else g


class Compiled(OnePass):
    """A compiled rule, from gradients to the next parameters."""

    fuses = True

    def __init__(self, kernel: Any, names: Sequence[str], constants: Callable[[Step], Sequence[float]]) -> None:
        """
        Args:
            kernel: Takes the vectors (n,) that the gradient lies in, filled up to three; the parameters and each state,
                and the next ones likewise; factors: divisor, 1 / divisor, scale, weight decay, pull, and the constants;
                how: whether the gradient is the sum of two vectors, whether it is made of three, whether to divide,
                where not by a power of two, and whether there is weight decay; and whether the next ones are the same
                memory.
            names: Of the states.
            constants: Of the rule, in a step.
        """
        self.kernel, self.names, self.constants = kernel, names, constants

    def __call__(self, current: Buffers, gradients: Sequence[Tensor], following: Buffers, step: Step, of: Mean) -> None:
        given = [vector.numpy() for vector in gradients]
        given += given[:1] * (3 - len(given))
        vectors = [*self._vectors(current), *self._vectors(following)]
        fixed = (of.divisor, 1 / of.divisor, of.scale, of.decay, of.pull)
        factors = np.array((*fixed, *self.constants(step)), np.float32)
        divides = math.frexp(of.divisor)[0] != 0.5  # a product with 1/2, 1/4 ... has the same bits, and is faster
        how = (len(gradients) == 2, len(gradients) == 3, divides)
        in_place = current.place == following.place
        if not step.exempt or not of.decay:
            self.kernel(tuple(given), *vectors, factors, (*how, of.decay != 0), in_place)
            return
        edges = [0, *(edge for part in step.exempt for edge in (part.start, part.stop)), len(given[0])]
        for place, (start, stop) in enumerate(pairwise(edges)):
            cut = [vector[start:stop] for vector in (*given, *vectors)]
            self.kernel(tuple(cut[:3]), *cut[3:], factors, (*how, place % 2 == 0), in_place)

    def _vectors(self, version: Buffers) -> list[Any]:
        return [version.params.numpy(), *(version.state[name].numpy() for name in self.names)]
