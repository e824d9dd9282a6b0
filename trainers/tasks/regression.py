"""Numbers from inputs."""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.data.batches import Data
from trainers.data.facts import DataFacts
from trainers.models.objective import Loss, Model, Supervised, shape_of
from trainers.tasks.base import Task
from trainers.tasks.measures import Determination, Mean, Measure

RegressionLoss = Literal["mse", "mae", "huber"]
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}


class Regression(Supervised, Task):
    """A model gives numbers (B, outputs) for inputs (B, ...). The loss of an example is the mean over its outputs."""

    def __init__(self, loss: RegressionLoss = "mse") -> None:
        """loss: `mse`, the squared error; `mae`, the absolute one; `huber`, the first near 0, the other beyond 1."""
        if loss not in get_args(RegressionLoss):
            raise ValueError(f"there is no loss {loss!r} of regression; take {', '.join(get_args(RegressionLoss))}")
        self.name = loss

    @property
    def weight_per_example(self) -> float:
        return 1.0

    def check(self, facts: DataFacts) -> None:
        if not facts.outputs:
            labels = f"labels of {facts.classes} classes; give whole numbers as float32"
            found = labels if facts.classes else "none"
            raise ValueError(f"regression needs targets that are numbers, and these data have {found}")

    def loss_of(self, outputs: Tensor, data: Data) -> Loss:
        targets = self._targets(data)
        if (found := shape_of(outputs)) != tuple(targets.shape):
            shapes = f"{found} for targets of {tuple(targets.shape)}"
            raise ValueError(f"the model gives {shapes}; it must give as many numbers as an example has targets")
        total = _FUNCTIONS[self.name](outputs, targets, reduction="sum") / targets.shape[1]
        return Loss(total, len(targets))

    def metrics(self, model: Model, data: Data) -> Mapping[str, Measure]:
        outputs, targets = model(self.inputs(data)), self._targets(data)
        loss, errors = self.loss_of(outputs, data), (outputs - targets).double()
        count, wide = targets.numel(), targets.double()
        explained = Determination(
            float((errors**2).sum()), float(wide.sum()), float((wide**2).sum()), count
        )  # over all outputs together
        return {
            "loss": Mean(float(loss.total), loss.weight),
            "mae": Mean(float(errors.abs().sum()), count),
            "r2": explained,
        }

    @staticmethod
    def _targets(data: Data) -> Tensor:
        """(B, outputs)."""
        targets: Tensor = data[1]
        return targets[:, None] if targets.ndim == 1 else targets
