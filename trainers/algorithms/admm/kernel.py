"""What consensus ADMM adds to a step, each in one pass over memory, compiled by Numba."""

from typing import Any

from numba import types

from trainers.optim.compiled import VECTOR, kept


@kept(types.void(*[VECTOR] * 5, types.float32))  # type: ignore[untyped-decorator]
def penalised(gradient: Any, x: Any, z: Any, u: Any, into: Any, rho: Any) -> None:
    """into = gradient + rho (x - z + u), each (n,)."""
    for i in range(len(into)):
        into[i] = (x[i] - z[i] + u[i]) * rho + gradient[i]


@kept(types.void(*[VECTOR] * 3, types.float32))  # type: ignore[untyped-decorator]
def weighted(x: Any, u: Any, into: Any, examples: Any) -> None:
    """into = (x + u) examples, each (n,)."""
    for i in range(len(into)):
        into[i] = (x[i] + u[i]) * examples


@kept(types.void(*[VECTOR] * 3))  # type: ignore[untyped-decorator]
def follow(u: Any, x: Any, z: Any) -> None:
    """u <- u + x - z, each (n,)."""
    for i in range(len(u)):
        u[i] = u[i] + (x[i] - z[i])
