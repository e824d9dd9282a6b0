"""What of the links has a name in a spec. Imports no torch."""

from typing import Literal

WireName = Literal["float32", "bfloat16"]
"""In which numbers gradients can travel."""

NUM_BYTES: dict[WireName, int] = {"float32": 4, "bfloat16": 2}
"""Of a number."""
