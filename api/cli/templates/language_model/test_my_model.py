"""Run it with pytest, before you train for hours."""

from pathlib import Path

import torch
from my_model import my_model


def test_it_learns() -> None:
    torch.manual_seed(0)
    text = (Path(__file__).parent / "my_text.txt").read_text()
    letters = sorted(set(text))
    tokens = torch.tensor([letters.index(letter) for letter in text])
    windows = tokens[: len(tokens) // 33 * 33].view(-1, 33)  # inputs, and the same one further
    model = my_model(vocabulary=len(letters), context=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses = []
    for step in range(60):
        batch = windows[step % 10 :: 10]
        logits = model(batch[:, :-1])
        losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.7 * losses[0]


def test_no_token_is_told_from_later_ones() -> None:
    model = my_model(vocabulary=5, context=8).eval()
    one, other = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 1, 4, 4]])
    assert torch.allclose(model(one)[:, :2], model(other)[:, :2], atol=1e-6)
