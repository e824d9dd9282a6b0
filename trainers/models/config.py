"""The section `model` of a spec. Imports no torch."""

import re
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainers.models.names import model_names
from trainers.section import Section, known

Scalar = bool | int | float | str | None
Argument = Scalar | list[Scalar]
"""What a model's constructor may be given."""


class ModelSpec(Section):
    """The model."""

    name: str = "lenet5"
    """`lenet5`, `convnet`, `mlp`, `alexnet_one_tower`, `alexnet_two_columns`, any torchvision classification model
    (`resnet18`, `alexnet` ...), `tabular` of a table's rows, `gpt` of tokens, `unet` of pixels, `hf:<type>` or
    `hf:<folder>` of transformers, `task` for the task's own, or a function of your own as `module:function` that takes
    `num_classes` and `in_channels` (of vectors `in_features`, and of codes `categories`, of tokens `vocabulary` and
    `context`) and returns a torch module. What that takes and gives must fit the task, whose loss is tried before the
    run."""

    weights: str | None = None
    """Initial weights: a file of safetensors, or of `torch.save` with nothing but tensors (.pt, .pth, .bin, .ckpt); a
    folder of `torch.distributed.checkpoint`, or of Hugging Face's. Parameters that it lacks, and those whose shape
    differs (a last layer), keep their own start."""

    key_mapping: dict[str, str] = Field(default={})
    """Regular expressions, and what takes their places in the names of these weights, one after another: with
    `"^module\\."` and an empty text, weights of DDP fit."""

    strict: bool = False
    """Refuse weights that leave a parameter or buffer of the model as it is, or that hold one too many."""

    kwargs: dict[str, Argument] = Field(default={})
    """Arguments passed on to the model's constructor; of `hf:`, values of its configuration."""

    init: Literal["default", "he"] = "default"
    """`he`: convolutions after He et al. 2015, the last layer from a Gaussian with 0.01, their biases 0 (paper 4,
    section 5.1); `default`: as the model's own constructor has it."""

    zero_gamma: bool = False
    """Start with gamma = 0 in the last batch norm of each residual block (paper 4, section 5.1); for models of
    torchvision's ResNet blocks."""

    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    """How images and convolutions lie in memory. `channels_last` is faster on a CPU; the numbers agree to float
    tolerance. Checkpoints do not depend on it. A model with a 1x1 convolution that has a stride and fewer than 16
    channels is `contiguous` anyway: oneDNN's backward pass of it in `channels_last` ends the process."""

    compile: bool = False
    """Train through torch.compile, each shape of a minibatch by itself. Evaluation and export use the model as it
    is."""

    checkpoint_activations: bool | list[str] = False
    """Keep only the inputs of the model's repeated blocks (the children of a ModuleList or Sequential), and compute the
    rest again in the backward pass; or of the modules whose names match one of these patterns."""

    @field_validator("checkpoint_activations")
    @classmethod
    def _is_not_compiled(cls, which: bool | list[str], info: ValidationInfo) -> bool | list[str]:
        if which and info.data.get("compile"):
            raise ValueError("what is compiled is not computed again; leave this out, or compile")
        return which

    @field_validator("key_mapping")
    @classmethod
    def _are_patterns(cls, mapping: dict[str, str]) -> dict[str, str]:
        for pattern, place in mapping.items():
            try:
                re.compile(pattern).sub(place, "")
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return mapping

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        if self.weights is None and (self.key_mapping or self.strict):
            raise ValueError("key_mapping and strict are about model.weights; name a file or folder there")
        return self

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return known((*model_names(), "task"), name, "a model of your own")
