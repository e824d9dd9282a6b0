"""Which memory format a model bears."""

from torch import nn

NARROW = 16
"""Input channels from which on it is safe."""


def breaks_channels_last(model: nn.Module) -> list[str]:
    """The convolutions, by name, in whose backward pass oneDNN (that of torch 2.15, on a CPU) writes past the end of
    its memory where images lie in `channels_last`: of 1x1 with a stride, and of few channels, as where a narrow
    residual network halves its images. The process ends of it, now or later."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and max(module.stride) > 1
        and module.in_channels // module.groups < NARROW
    ]
