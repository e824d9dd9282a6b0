"""Labels from inputs."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from trainers.data.batches import Data
from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected
from trainers.models.losses import LabelLoss, loss_at_chance
from trainers.models.names import LossName
from trainers.models.objective import Loss, Model, shape_of
from trainers.tasks.base import Task
from trainers.tasks.class_part import ClassPart
from trainers.tasks.class_weights import GivenWeights, weigh_classes
from trainers.tasks.measures import Mean, Measure

TOP5_FROM = 20
"""Classes from which on it is told whether the label is among the five likeliest; of ten, half are."""


class Classification(LabelLoss, Task):
    """A model gives logits (B, classes) for inputs (B, ...), and each input has one label."""

    is_traceable = True
    headline: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    evaluated: ClassPart | None = None
    """The classes that are evaluated; none: all."""

    def __init__(
        self, loss: LossName = "cross_entropy", label_smoothing: float = 0.0, class_weight: GivenWeights = None
    ) -> None:
        """loss: as `loss` of the spec. label_smoothing: 0 to 1, of `cross_entropy` while training. class_weight:
        likewise, what each class weighs, or `balanced`; None: all the same."""
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be at least 0 and below 1")
        if label_smoothing and loss != "cross_entropy":
            raise ValueError(f"label_smoothing goes with loss: cross_entropy, not with {loss}; leave one of them out")
        if class_weight is not None and loss != "cross_entropy":
            raise ValueError(f"class_weight goes with loss: cross_entropy, not with {loss}; leave one of them out")
        super().__init__(loss, label_smoothing)
        self.given_weights = class_weight

    def check(self, facts: DataFacts) -> None:
        if not facts.classes:
            raise ValueError("classification needs labels 0, 1, 2 ..., and these data have none")
        self.class_weights, self.told = weigh_classes(self.given_weights, facts.classes, facts)

    @property
    def hugging_face_head(self) -> str:
        return "ImageClassification" if len(self.facts.inputs) == 3 else "SequenceClassification"

    def loss_of(self, outputs: Tensor, data: Data) -> Loss:
        wanted = (len(data[1]), self.facts.classes)
        if (found := shape_of(outputs)) != wanted:
            raise ValueError(f"the model gives {found} for {wanted[0]} examples; it must give logits of shape {wanted}")
        return super().loss_of(outputs, data)

    def evaluate_only(self, classes: Sequence[int]) -> None:
        """Measure a part of the classes. Raises SpecRejected where one is none of the data's."""
        try:
            self.evaluated = ClassPart(classes, self.facts.classes)
        except ValueError as error:
            raise SpecRejected(f"evaluate.classes: {error}") from error
        self.told = (*self.told, self.evaluated.told)

    def metrics(self, model: Model, data: Data) -> Mapping[str, Measure]:
        part = self.evaluated
        data = data if part is None else part.examples(data)
        labels: Tensor = data[1]
        count = len(labels)
        if not count:
            return {}
        logits = model(self.inputs(data))
        logits = logits if part is None else part.logits(logits)
        plain = LabelLoss(self.name).loss_of(logits, data)
        right = int((logits.argmax(1) == labels).sum())
        found: dict[str, Measure] = {"loss": Mean(float(plain.total), count), "accuracy": Mean(right, count)}
        if logits.shape[1] >= TOP5_FROM:
            among = (logits.topk(5, dim=1).indices == labels[:, None]).any(1)
            found["top5_accuracy"] = Mean(int(among.sum()), count)
        return found

    def chance_loss(self) -> float:
        return loss_at_chance(self.name, self.facts.classes)
