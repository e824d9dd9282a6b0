"""The next token of a text."""

import math
from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.data.batches import Data
from trainers.data.facts import DataFacts
from trainers.models.objective import Loss, Model, Supervised, shape_of
from trainers.tasks.base import Task
from trainers.tasks.measures import Bits, Mean, Measure, Perplexity

IGNORED = -100
"""A target that does not count, as in torch's cross entropy: padding, or a prompt."""


class LanguageModel(Supervised, Task):
    """A model gives logits (B, T, vocabulary) for tokens (B, T), and each token has the next one as its target.

    The loss is the cross entropy, summed over the tokens that count. An update divides by how many these are in the
    whole minibatch.
    """

    is_traceable = True

    @property
    def weight_per_example(self) -> float | None:
        """The window's length where no window is padded."""
        return None if self.facts.padded else float(self.facts.inputs[0])

    @property
    def hugging_face_head(self) -> str:
        return "CausalLM"

    def check(self, facts: DataFacts) -> None:
        if not facts.vocabulary:
            raise ValueError("language_model needs tokens, and these data have none; take data: text")

    def loss_of(self, outputs: Tensor, data: Data) -> Loss:
        targets: Tensor = data[1]
        wanted = (*targets.shape, self.facts.vocabulary)
        if (found := shape_of(outputs)) != wanted:
            raise ValueError(f"the model gives {found} for {len(targets)} windows; it must give logits {wanted}")
        flat = outputs.reshape(-1, outputs.shape[-1])
        total = F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction="sum")
        return Loss(total, self._counting(targets))

    def weigh(self, data: Data) -> float:
        return float(self._counting(data[1]))

    def _counting(self, targets: Tensor) -> float | Tensor:
        return (targets != IGNORED).sum() if self.facts.padded else targets.numel()

    def metrics(self, model: Model, data: Data) -> Mapping[str, Measure]:
        loss = self.loss(model, data)
        total = float(loss.total)
        found: dict[str, Measure] = {"loss": Mean(total, loss.weight), "perplexity": Perplexity(total, loss.weight)}
        if self.facts.unit:
            found[f"bits_per_{self.facts.unit}"] = Bits(total, loss.weight * self.facts.units_per_token)
        return found

    def chance_loss(self) -> float:
        return math.log(self.facts.vocabulary)
