"""Run it with pytest, before you train for hours."""

from types import SimpleNamespace

import torch
from my_data import my_data
from my_task import MyTask
from torch import Tensor, nn

FACTS = SimpleNamespace(inputs=(1,))


def error(task: MyTask, model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return task.metrics(model, data)["error"].value


def test_the_loss_is_a_sum_over_examples() -> None:
    """The loss of a minibatch is that of its two halves together, so it does not matter who computes which."""
    torch.manual_seed(0)
    task, ((x, y), _) = MyTask(), my_data("")
    model, x, y = task.model(FACTS), torch.from_numpy(x[:10]), torch.from_numpy(y[:10])
    whole, first, second = (task.loss(model, (x[part], y[part])) for part in (slice(10), slice(4), slice(4, 10)))
    torch.testing.assert_close(whole.total, first.total + second.total)
    assert whole.weight == first.weight + second.weight == 10


def test_it_learns() -> None:
    torch.manual_seed(0)
    task, ((x, y), _) = MyTask(), my_data("")
    model, data = task.model(FACTS), (torch.from_numpy(x[:500]), torch.from_numpy(y[:500]))
    before = error(task, model, data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        loss = task.loss(model, data)
        optimizer.zero_grad()
        (loss.total / loss.weight).backward()
        optimizer.step()
    assert error(task, model, data) < before / 2
