"""By what a loss is multiplied so that its gradients do not vanish in 16 bits. Imports no torch.

Micikevicius et al. 2018, section 3.2, with the numbers of `torch.amp.GradScaler`: doubled after 2,000 updates in a row,
and halved by a gradient that is not finite, which makes no update.
"""

from dataclasses import dataclass

FIRST, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000


@dataclass(frozen=True)
class LossScale:
    """That of the next step."""

    factor: float = FIRST
    """A power of two, so that a division by it takes it out of a gradient without a rounding."""
    updates: int = 0
    """In a row, since it changed last."""

    def after(self, is_finite: bool) -> "LossScale":
        """The scale after a step; is_finite: whether its summed gradient was."""
        if not is_finite:
            return LossScale(self.factor * BACKOFF)
        if self.updates + 1 < INTERVAL:
            return LossScale(self.factor, self.updates + 1)
        return LossScale(self.factor * GROWTH)


FIRST_SCALE = LossScale()
"""Of a run that begins."""
