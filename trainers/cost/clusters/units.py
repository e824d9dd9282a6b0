"""Quantities as people write them, `6 GB/s`, `56 Gbit/s`, `20 us`, read into SI units."""

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
BYTES = {f"{prefix}B": factor for prefix, factor in PREFIXES.items()}
RATES = {f"{unit}/s": factor for unit, factor in BYTES.items()}
RATES |= {f"{prefix}bit/s": factor / 8 for prefix, factor in PREFIXES.items()}
FLOPS = {f"{prefix}FLOP/s": factor for prefix, factor in PREFIXES.items()}
WRITTEN = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(\S*)\s*")


def quantity(written: Any, units: dict[str, float]) -> float:
    """The number that a text means in the unit of factor 1; a number is taken to be in that unit.

    Raises:
        ValueError: It is no number, or the unit is none of these.
    """
    if isinstance(written, int | float) and not isinstance(written, bool):
        found = float(written)
    else:
        match = WRITTEN.fullmatch(written) if isinstance(written, str) else None
        usual = ", ".join(units)
        if match is None:
            raise ValueError(f"{written!r} is no number with a unit; write for instance 6 {list(units)[-1]}")
        number, unit = match.groups()
        if unit not in units:
            raise ValueError(f"{unit or 'no unit'!r} is no unit here; use one of {usual}")
        try:
            found = float(number) * units[unit]
        except ValueError:
            raise ValueError(f"{number!r} is no number; write for instance 6 {unit}") from None
    if not math.isfinite(found):
        raise ValueError(f"{written!r} is no finite number")
    return found


def _read(units: dict[str, float]) -> BeforeValidator:
    return BeforeValidator(lambda written: quantity(written, units), json_schema_input_type=float | str)


Seconds = Annotated[float, _read(TIMES), Field(ge=0)]
NumBytes = Annotated[float, _read(BYTES), Field(gt=0)]
BytesPerS = Annotated[float, _read(RATES), Field(gt=0)]
FlopPerS = Annotated[float, _read(FLOPS), Field(gt=0)]
