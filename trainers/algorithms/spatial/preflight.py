"""What the shapes of a model and its images show to be wrong, before any of it is computed."""

import torch
from torch import nn
from torch.func import functional_call

from trainers.algorithms.spatial.layers import RowModel
from trainers.errors import SpecRejected


def check_rows(model: nn.Module, inputs: tuple[int, ...], num_workers: int, until: str | None) -> None:
    """Refuse what cannot be divided, from shapes alone: a whole image may need more memory than one worker has.

    Raises:
        SpecRejected: Names the field and what would work.
    """
    if len(inputs) != 3:
        shape = " x ".join(map(str, inputs))
        raise SpecRejected(f"data.name: spatial divides the rows of images, and an example is {shape}; take sync")
    RowModel(model, inputs[1], until).check_workers(num_workers)
    shapes = {name: torch.empty_like(value, device="meta") for name, value in _values(model).items()}
    was_training = model.training
    try:
        with torch.no_grad():
            functional_call(model.eval(), shapes, torch.zeros(1, *inputs, device="meta"))
    except NotImplementedError:
        pass  # it has an operation that computes no shapes alone, so its first step tells
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise SpecRejected(f"model: it does not take images of {' x '.join(map(str, inputs))}: {error}") from error
    finally:
        model.train(was_training)


def _values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
