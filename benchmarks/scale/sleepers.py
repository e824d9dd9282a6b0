"""A Downpour run whose workers sleep for their computation and whose shards sleep for each push; what it must reach."""

from dataclasses import dataclass

from trainers.spec import TrainSpec

CODE = "service.claims.experiments.sleeping"
ENDLESS = 100_000  # epochs; the run is ended when enough of it was seen


@dataclass(frozen=True)
class Sleepers:
    """How long who sleeps, in the words of paper 2, section 5.2.1."""

    think_s: float = 3.2
    """T: a worker computes a minibatch for so long."""
    serve_s: float = 0.05
    """tau: a shard is busy with one push for so long."""
    numel: int = 50_000
    """P, float32 numbers that each worker fetches and pushes in a step."""
    shards: int = 1

    @property
    def corner(self) -> float:
        """T/tau: beyond so many workers nothing is gained."""
        return self.think_s / self.serve_s

    def bound(self, workers: int) -> float:
        """Steps a second that so many workers can make at most: min(K/T, 1/tau)."""
        return min(workers / self.think_s, 1 / self.serve_s)

    def spec(self, workers: int, report_every_s: float = 0.1, epochs: int = ENDLESS) -> TrainSpec:
        """A minibatch is one example, so that the examples of the log are steps."""
        sizes = {"think_s": self.think_s, "numel": self.numel, "shards": self.shards}
        return TrainSpec.model_validate(
            {
                "workers": {"count": workers, "max": workers + 1, "threads": 1},
                "algorithm": {"name": "downpour", "num_push": 1, "num_fetch": 1, "max_staleness": None},
                "model": {"name": f"{CODE}:sleeper", "kwargs": sizes},
                "data": {"name": f"{CODE}:numbers"},
                "optimizer": {"name": f"{CODE}:SlowSGD", "lr": 1e-4, "kwargs": {"serve_s": self.serve_s}},
                "ps": {"shards": self.shards},
                "batch": 1,
                "epochs": epochs,
                "evaluate": {"every_epochs": 0},
                "checkpoint": {"every_epochs": 0},
                "report_every_s": report_every_s,
                "seed": 0,
            }
        )
