"""Which rows of an image, and of what the layers make of it, each worker has, and which it sees. Imports no torch."""

from dataclasses import dataclass

from trainers.collectives.reduction_tree import block


def rows_of(height: int, worker: int, size: int) -> range:
    """The rows that one of `size` workers has, of an image or of a layer's maps; as nearly equal as possible."""
    return range(*block(height, worker, size))


def common(one: range, other: range) -> range:
    """The rows that both have."""
    first = max(one.start, other.start)
    return range(first, max(first, min(one.stop, other.stop)))


@dataclass(frozen=True)
class Window:
    """What a convolution or a pooling sees of the rows below."""

    kernel: int
    stride: int = 1
    padding: int = 0
    """Rows on either side of the image."""
    dilation: int = 1

    @property
    def reach(self) -> int:
        """From the first row that one output row sees to the last."""
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, height: int) -> int:
        """Rows that it makes of so many."""
        return (height + 2 * self.padding - self.reach) // self.stride + 1

    def seen(self, rows: range) -> range:
        """The rows below that these output rows see; those before 0 and after the last are padding."""
        if not rows:
            return range(0)
        first = rows.start * self.stride - self.padding
        return range(first, first + (len(rows) - 1) * self.stride + self.reach)

    def halos(self, height: int, size: int) -> list[list[range]]:
        """What each worker sees of each worker's rows, `[sees][has]`; of its own, no halo."""
        own = [rows_of(height, k, size) for k in range(size)]
        seen = [self.seen(rows_of(self.outputs(height), k, size)) for k in range(size)]
        return [[range(0) if k == j else common(rows, theirs) for j, theirs in enumerate(own)]
                for k, rows in enumerate(seen)]  # fmt: skip

    def halo_rows(self, height: int, size: int) -> int:
        """Rows that travel between the workers in a forward pass; in a backward pass their gradients do.

        2 (K - 1) (k - 1)/2 for a kernel of k with stride 1 that keeps the height.
        """
        return sum(len(rows) for seen in self.halos(height, size) for rows in seen)

    def can_be_shared(self, height: int, size: int) -> bool:
        """Whether each worker has an output row, and sees no rows but its own and its neighbours'."""
        if self.outputs(height) < size or height < size:
            return False
        halos = self.halos(height, size)
        return not any(rows for k, seen in enumerate(halos) for j, rows in enumerate(seen) if abs(k - j) > 1)
