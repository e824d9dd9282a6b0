"""The penalised gradient of consensus ADMM in one pass, compiled by Numba."""

from typing import Any

from numba import types

from trainers.optim.compiled import VECTOR, kept


@kept(types.void(*[VECTOR] * 5, types.float32))  # type: ignore[untyped-decorator]
def penalised(gradient: Any, x: Any, z: Any, u: Any, into: Any, rho: Any) -> None:
    """into = gradient + rho (x - z + u), each (n,)."""
    for i in range(len(into)):
        into[i] = (x[i] - z[i] + u[i]) * rho + gradient[i]
