"""One version of a slice of the parameters, with the optimizer state of the same slice beside it."""

from dataclasses import dataclass

from torch import Tensor

State = dict[str, Tensor]
"""The optimizer state of a slice of n elements: name -> (n,) float32."""


@dataclass(frozen=True)
class Buffers:
    """Parameters (n,) and optimizer state (n,) each, as they are after the same update."""

    params: Tensor
    state: State

    @property
    def vectors(self) -> list[Tensor]:
        """Parameters, then the state in the order of its names."""
        return [self.params, *(self.state[name] for name in sorted(self.state))]

    def copy_(self, other: "Buffers") -> None:
        """Take over the elements of another version."""
        for mine, theirs in zip(self.vectors, other.vectors, strict=True):
            mine.copy_(theirs)

    @property
    def place(self) -> tuple[int, ...]:
        """Where its vectors lie in memory: equal where, and only where, two are the same memory."""
        return tuple(vector.data_ptr() for vector in self.vectors)

    def part(self, span: slice) -> "Buffers":
        """Views of the elements in `span`."""
        return Buffers(self.params[span], {name: vector[span] for name, vector in self.state.items()})
