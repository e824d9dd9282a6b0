"""What was predicted of a run's rate, and how it compares with what was measured. Imports no torch."""

from pathlib import Path

from pydantic import ConfigDict

from trainers.documented import Documented

PARTS = {"computing": "compute_s", "data": "wait_data_s", "exchanges and waits": "wait_communication_s"}
"""The parts of a worker's time -> the counter of a `step` event that measures it."""


def profiles_folder() -> Path:
    """Where a user's profiles of steps lie."""
    return Path.home() / ".cache" / "millrace" / "profiles"


class Part(Documented):
    """Base class of what stands here: frozen, with documented fields."""

    model_config = ConfigDict(frozen=True)


class Prediction(Part):
    """Of a run with so many workers."""

    workers: int
    examples_per_s: float
    least_per_s: float | None = None
    """The rate lies between this and `most_per_s` in nine of ten runs, as far as the timed steps tell."""
    most_per_s: float | None = None
    basis: str
    """Where the seconds of a minibatch come from."""
    parts: dict[str, float]
    """Seconds of a worker for an example, by the names of `PARTS`."""


class PartOff(Part):
    """One part of a worker's time, in seconds for an example."""

    predicted_s: float
    measured_s: float


class Comparison(Part):
    """Predicted against measured, over the reports of the workers while as many trained as were predicted."""

    workers: int
    basis: str
    predicted_per_s: float
    measured_per_s: float
    off: float
    """The predicted rate to the measured one, less 1."""
    parts: dict[str, PartOff]
    furthest_off: str
    """The part whose seconds were predicted worst."""

    @property
    def sentence(self) -> str:
        """The same in words, without an end."""
        worst = self.parts[self.furthest_off]
        return (
            f"{self.predicted_per_s:,.0f} examples a second were predicted from {self.basis}, and "
            f"{self.measured_per_s:,.0f} were measured: the prediction is {_off(self.off)}; furthest off: "
            f"{self.furthest_off}, with {1000 * worst.predicted_s:.3g} ms of a worker for an example predicted, and "
            f"{1000 * worst.measured_s:.3g} ms measured"
        )


def _off(off: float) -> str:
    """How far a prediction is off, as part of a sentence."""
    if off >= 1:
        return f"{1 + off:.1f} times the rate"
    return f"{abs(off):.1%} too {'high' if off >= 0 else 'low'}"
