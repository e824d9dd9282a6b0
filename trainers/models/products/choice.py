"""Which library makes which product. Imports no torch: the coordinator tells every worker."""

from dataclasses import dataclass

LEAST_WEIGHTS = 16 * 1024
"""Below this size of a layer a call of oneDNN costs more than it saves, and nothing is measured."""

PASSES = ("outputs", "input gradient", "weight gradient")


@dataclass(frozen=True)
class Choice:
    """What was measured on one kind of processor."""

    processor: str = ""
    """Its name with the version of torch and the threads of a worker; empty: nothing was measured."""
    measured: tuple[str, ...] = ()
    """The products that were measured, as `product_name` names them."""
    onednn: tuple[str, ...] = ()
    """Those of them that oneDNN made faster."""

    @property
    def sentence(self) -> str:
        """For the log."""
        return (
            f"{len(self.onednn)} of {len(self.measured)} products of fully connected layers go through oneDNN, the "
            f"others through torch's own library, as was measured on {self.processor}"
        )


UNMEASURED = Choice()
"""The usual library for each product, by the size of the layer."""


def product_name(which: int, inputs: int, outputs: int) -> str:
    """A product of a layer, whatever the number of rows. which: index in PASSES."""
    return f"{PASSES[which]} {inputs}x{outputs}"
