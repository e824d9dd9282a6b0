"""The losses of shards of the classes together are the loss."""

import pytest
import torch
from torch import Tensor

from tests.equivalence.harness import (
    written_loss,
)
from tests.equivalence.hybrid_net import spec
from trainers.models.losses import loss_of_shard


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic"])
def test_a_loss_from_shards_is_the_loss(loss: str) -> None:
    """The logits are too large for a softmax without the maximum over all shards."""
    torch.manual_seed(0)
    logits, labels = (100 * torch.randn(6, 10)).requires_grad_(), torch.tensor([0, 3, 4, 9, 5, 5])
    cuts = [slice(0, 4), slice(4, 5), slice(5, 10)]
    expected = written_loss(spec(1, 1, loss=loss), logits, labels)
    (gradient,) = torch.autograd.grad(expected, logits)
    figures = []

    def record(own: Tensor) -> Tensor:
        figures.append(own)
        return own[None]

    for cut in cuts:
        loss_of_shard(loss, logits.detach()[:, cut], labels, cut.start, record)
    assert len(figures) == (3 if loss == "cross_entropy" else 0)  # no normalisation, no exchange
    parts = [
        loss_of_shard(loss, logits.detach()[:, cut], labels, cut.start, lambda _: torch.stack(figures)) for cut in cuts
    ]
    torch.testing.assert_close(torch.cat([part for _, part in parts], 1), gradient, rtol=1e-5, atol=1e-6)
    found = parts[0][0] if loss == "cross_entropy" else sum(losses for losses, _ in parts)
    torch.testing.assert_close(found.sum(), expected.detach(), rtol=1e-5, atol=1e-5)
