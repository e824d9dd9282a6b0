"""The section `compress` of a spec: what of a gradient travels. Imports no torch."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trainers.section import Section

BLOCK = 1024
"""Adjacent elements that have one scale in common."""

COLUMNS = "powersgd"
"""Under which name a checkpoint has what PowerSGD begins its next sum with."""

SOURCES = {
    "top_k": "Stich et al. 2018",
    "sign": "Seide et al. 2014, Karimireddy et al. 2019",
    "int8": "Seide et al. 2014, with 8 bits",
    "powersgd": "Vogels et al. 2019",
}
FORMULAS = {
    "top_k": "the {count} elements of p with the largest absolute value",
    "sign": "2^floor(log2(mean |p|)) sign(p), a mean for each {block} elements",
    "powersgd": "P P' p of each matrix p (n x m), with P the orthonormal columns of the sum over all workers of p Q "
    "(n x {rank}), Q <- the sum of p' P (m x {rank})",
    "int8": "s round(p / s), s = 2^ceil(log2(max |p| / 127)) for each {block} elements",
}


def named(value: Any) -> Any:
    """Lets a name stand for a section in which only that is true. Raises ValueError where there is no such way."""
    if isinstance(value, str) and value not in ("sign", "int8"):
        raise ValueError(
            f"{value!r} is none of the ways; give {{top_k: SHARE}}, or {{powersgd: RANK}}, or sign or int8"
        )
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

    powersgd: int | None = Field(default=None, ge=1, le=1024)
    """The rank r to which the sum of each matrix (n, m) is brought down, so that r (n + m) numbers of it travel, where
    these are fewer (Vogels et al. 2019)."""

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("give one of top_k: SHARE, sign: true, int8: true and powersgd: RANK")
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
        sent = FORMULAS[self.name].format(count=count, block=BLOCK, rank=self.powersgd)
        return f"p = g + e; what is sent: {sent}; e <- p - what is sent"

    @property
    def source(self) -> str:
        """Papers."""
        return SOURCES[self.name]

    @property
    def value(self) -> str:
        """The name, and its number."""
        number = self.top_k or self.powersgd
        return self.name if number is None else f"{self.name} {number:g}"

    @property
    def bytes_an_element(self) -> float | None:
        """What a long vector takes where it travels, for each of its elements; None where its shapes decide."""
        if self.powersgd is not None:
            return None
        if self.top_k is not None:
            positions = 0.0 if self.top_k == 1 else min(4 * self.top_k, 1 / 8)
            return 4 * self.top_k + positions
        return (1 / 8 if self.sign else 1) + 1 / BLOCK
