"""The section `compress` of a spec: what of a gradient travels. Imports no torch."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trainers.section import Section

BLOCK = 1024
"""Adjacent elements that have one scale in common."""

SOURCES = {
    "top_k": "Stich et al. 2018",
    "sign": "Seide et al. 2014, Karimireddy et al. 2019",
    "int8": "Seide et al. 2014, with 8 bits",
}
FORMULAS = {
    "top_k": "the {count} elements of p with the largest absolute value",
    "sign": "2^floor(log2(mean |p|)) sign(p), a mean for each {block} elements",
    "int8": "s round(p / s), s = 2^ceil(log2(max |p| / 127)) for each {block} elements",
}


def named(value: Any) -> Any:
    """Lets a name stand for a section in which only that is true. Raises ValueError where there is no such way."""
    if isinstance(value, str) and value not in ("sign", "int8"):
        raise ValueError(f"{value!r} is none of the ways; give {{top_k: SHARE}}, or sign or int8")
    return {value: True} if isinstance(value, str) else value


def kept_names(num_virtual: int) -> tuple[str, ...]:
    """Under which names a checkpoint has what each virtual worker has not sent yet, (P,), in the order of the ranks."""
    return tuple(f"kept-{rank}" for rank in range(num_virtual))


class CompressSpec(Section):
    """Each worker sends a few bits of what it has to send, keeps the rest, and adds it the next time (error feedback).
    One of these ways."""

    top_k: float | None = Field(default=None, gt=0, le=1)
    """The share of the elements that travel, those with the largest absolute value (Stich et al. 2018)."""

    sign: Literal[True] | None = None
    """The sign of each element travels, with one scale for 1,024 adjacent ones (Seide et al. 2014, Karimireddy et al.
    2019)."""

    int8: Literal[True] | None = None
    """Each element travels as an integer of 8 bits, with one scale for 1,024 adjacent ones."""

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("give one of top_k: SHARE, sign: true and int8: true")
        return self

    @property
    def name(self) -> str:
        """Which of the ways."""
        (name,) = self.model_dump(exclude_none=True)
        return name

    @property
    def formula(self) -> str:
        """What is made of a gradient g, and of what was kept of those before, e, for `explain`."""
        count = f"{self.top_k:.3g} of all" if self.top_k else ""
        sent = FORMULAS[self.name].format(count=count, block=BLOCK)
        return f"p = g + e; what is sent: {sent}; e <- p - what is sent"

    @property
    def source(self) -> str:
        """Papers."""
        return SOURCES[self.name]

    @property
    def bytes_an_element(self) -> float:
        """What a long vector takes where it travels, for each of its elements."""
        if self.top_k is not None:
            positions = 0.0 if self.top_k == 1 else min(4 * self.top_k, 1 / 8)
            return 4 * self.top_k + positions
        return (1 / 8 if self.sign else 1) + 1 / BLOCK
