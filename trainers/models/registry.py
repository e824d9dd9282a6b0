"""Models by name: `build_model`."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainers import user_code
from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected, UserCodeFailed
from trainers.models.config import ModelSpec
from trainers.models.initialisation import he_initialise, zero_gamma
from trainers.models.names import is_hugging_face
from trainers.models.networks.gpt import Gpt
from trainers.models.networks.krizhevsky import OneTowerAlexNet, ReleasedAlexNet, TwoColumnAlexNet
from trainers.models.networks.resnet_cifar import resnet_cifar
from trainers.models.networks.small import ConvNet, LeNet5, Mlp, TwoColumnConvNet
from trainers.models.networks.tabular import Tabular
from trainers.models.weights import initialise

Shape = tuple[int, ...]
"""(C, H, W) of an image, (F,) of a vector."""

_OWN: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "convnet": ConvNet,
    "mlp": Mlp,
    "tabular": Tabular,
    "convnet_two_columns": TwoColumnConvNet,
    "alexnet_one_tower": OneTowerAlexNet,
    "alexnet_released": ReleasedAlexNet,
    "alexnet_two_columns": TwoColumnAlexNet,
    "resnet_cifar": resnet_cifar,
}


def build_model_for(model: ModelSpec, facts: DataFacts, seed: int) -> nn.Module:
    """The model of a spec for data that look like this: as `build_model`, or from tokens (B, T) to logits (B, T,
    vocabulary)."""
    if not facts.vocabulary:
        return build_model(model, facts.classes or facts.outputs, facts.inputs, seed, facts.categories)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = _of_tokens(model, facts)
        _complete(model, module, torch.zeros(1, *facts.inputs, dtype=torch.int64))
    if model.weights is not None:
        initialise(module, model)
    return module.train()


def build_model(
    model: ModelSpec, num_classes: int, image_shape: Shape, seed: int, categories: tuple[int, ...] = ()
) -> nn.Module:
    """The model of a spec with its initial weights, on the CPU, in training mode; (B, C, H, W) to logits (B, classes).

    categories: how many codes each of a vector's last numbers may hold, where they stand for categories.

    The weights depend on `seed` alone, or come from `model.weights`; torch's own generator is left unchanged. One image
    of zeros is passed through a model by name, so that one that cannot work on this data is refused here. What a model
    of the user's takes and gives is between it and the task, whose loss of a minibatch the preflight tries.

    Raises SpecRejected (unknown name, arguments, images or weights that do not fit) and UserCodeFailed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if user_code.is_user_name(model.name):
            module = _user(model, num_classes, image_shape, categories)
            _complete(model, module, torch.zeros(1, *image_shape))
        elif model.name in _OWN:
            module = _own(model, num_classes, image_shape, categories)
        elif is_hugging_face(model.name):
            raise SpecRejected(f"model: {model.name} goes with a task by name; this needs a model of images or vectors")
        elif model.name == "unet":
            raise SpecRejected("model: unet gives a class to each pixel; set task: segmentation")
        elif model.name == "task":
            raise SpecRejected("model: task means the model that a task of your own brings; name another one here")
        elif model.name == "gpt":
            raise SpecRejected("model: gpt reads tokens, and these are images; set task: language_model and data: text")
        else:
            module = _torchvision(model, num_classes, image_shape)
        if not user_code.is_user_name(model.name):
            _try(model, module, num_classes, image_shape)
        if model.init == "he":
            he_initialise(model.name, module, num_classes)
        if model.zero_gamma:
            zero_gamma(model.name, module)
    if model.weights is not None:
        initialise(module, model)
    return module.train()


def _of_tokens(model: ModelSpec, facts: DataFacts) -> nn.Module:
    vocabulary, context = facts.vocabulary, facts.inputs[0]
    if user_code.is_user_name(model.name):
        labels = {"num_classes": facts.classes} if facts.classes else {}
        return user_model(model, vocabulary=vocabulary, context=context, **labels)
    if model.name != "gpt":
        raise SpecRejected(
            f"model: {model.name} reads images, and these are tokens; take gpt, or a function of your own"
        )
    check_arguments(model, Gpt)
    try:
        return Gpt(vocabulary, context, **model.kwargs)  # type: ignore[arg-type]  # checked by name, refused by value
    except (RuntimeError, ValueError, TypeError) as error:
        raise SpecRejected(f"model.kwargs: {error}") from error


def check_arguments(model: ModelSpec, constructor: Callable[..., nn.Module]) -> None:
    allowed = list(inspect.signature(constructor).parameters)[2:]
    for argument in model.kwargs:
        if argument not in allowed:
            raise SpecRejected(f"model.kwargs: {model.name} takes {' and '.join(allowed) or 'none'}, not {argument!r}")


def _own(model: ModelSpec, num_classes: int, image_shape: Shape, categories: tuple[int, ...]) -> nn.Module:
    constructor = _OWN[model.name]
    check_arguments(model, constructor)
    if categories and model.name != "tabular":
        raise SpecRejected(f"data.encoding: {model.name} takes no codes; take one_hot, or the model tabular")
    shape = (image_shape[0] - len(categories), *categories) if model.name == "tabular" else image_shape
    try:
        if model.name == "tabular" and len(image_shape) != 1:
            raise ValueError("it reads the rows of a table")
        return constructor(num_classes, shape, **model.kwargs)
    except (RuntimeError, ValueError, TypeError) as error:
        raise _unfit(model, image_shape, error) from error


def _torchvision(model: ModelSpec, num_classes: int, image_shape: Shape) -> nn.Module:
    """A classification model of torchvision, its first convolution adapted to the channels of the images."""
    import torchvision.models

    if len(image_shape) != 3:
        raise SpecRejected(f"model: {model.name} reads images, and these are vectors; take mlp, or one of your own")
    arguments = {**_defaults(model.name, image_shape), **model.kwargs}
    try:
        module: nn.Module = torchvision.models.get_model(model.name, weights=None, num_classes=num_classes, **arguments)
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise SpecRejected(
            f"model {model.name} cannot be made for images of {_size(image_shape)} with "
            f"{arguments or 'its defaults'}: {error}"
        ) from error
    if image_shape[0] != 3:
        _adapt_first_convolution(model.name, module, image_shape[0])
    return module


def _defaults(name: str, image_shape: Shape) -> dict[str, Any]:
    """Arguments that make a torchvision model a plain classifier of these images."""
    if name in ("googlenet", "inception_v3"):  # one output, not three; and the initialisation without SciPy
        return {"aux_logits": False, "init_weights": True}
    if name.startswith("vit_"):
        return {"image_size": image_shape[1]}
    if name.startswith("maxvit_"):
        return {"input_size": image_shape[1:]}
    return {}


def _adapt_first_convolution(name: str, module: nn.Module, channels: int) -> None:
    """Make the first convolution accept one grey channel: its filters are summed over the three colours.

    The result is what the model computes for the same grey image in all three channels, so the variance of the initial
    weights fits the model's own initialisation. Raises SpecRejected if there is no such convolution.
    """
    for layer in module.modules():
        if not isinstance(layer, nn.Conv2d):
            continue
        if layer.in_channels != 3 or layer.groups != 1 or channels != 1:
            break
        layer.weight = nn.Parameter(layer.weight.detach().sum(dim=1, keepdim=True))
        layer.in_channels = 1
        return
    raise SpecRejected(
        f"model {name} cannot be made for images of {channels} channels; "
        "give a model of your own as module:function (it is called with in_channels)"
    )


def _user(model: ModelSpec, num_classes: int, image_shape: Shape, categories: tuple[int, ...]) -> nn.Module:
    size = "in_channels" if len(image_shape) == 3 else "in_features"
    sizes: dict[str, Any] = {"num_classes": num_classes, size: image_shape[0]}
    return user_model(model, **(sizes | ({"categories": categories} if categories else {})))


def user_model(model: ModelSpec, **sizes: Any) -> nn.Module:
    """What a function of the user's returns for those of the `sizes` that it takes, and for the spec's arguments.

    A function that hands its arguments on, as torchvision's do, may be one that takes only the number of classes.
    """
    taken = user_code.taken(model.name, sizes)
    try:
        module = user_code.call(model.name, **taken, **model.kwargs)
    except UserCodeFailed as error:
        unwanted = [size for size in taken if f"unexpected keyword argument '{size}'" in str(error)]
        if not unwanted:
            raise
        module = user_code.call(model.name, **{s: n for s, n in taken.items() if s not in unwanted}, **model.kwargs)
    if not isinstance(module, nn.Module):
        raise UserCodeFailed(f"{model.name} returned {type(module).__name__}; it must return a torch.nn.Module")
    return module.cpu()


def _complete(model: ModelSpec, module: nn.Module, example: torch.Tensor) -> None:
    """Give lazy layers of a user's model their shapes, and so weights, by one pass of an example (1, ...)."""
    if not any(nn.parameter.is_lazy(each) for each in (*module.parameters(), *module.buffers())):
        return
    try:
        with torch.no_grad():
            module.eval()(example)
    except Exception as error:
        raise user_code.failed(f"{model.name}, on an example of shape {tuple(example.shape)},", error) from error


def _try(model: ModelSpec, module: nn.Module, num_classes: int, image_shape: Shape) -> None:
    """Pass one image of zeros through the model, in evaluation mode, so that no batch-norm statistics change."""
    try:
        with torch.no_grad():
            output = module.eval()(torch.zeros(1, *image_shape))
    except Exception as error:
        raise _unfit(model, image_shape, error) from error
    if output.shape != (1, num_classes):
        raise SpecRejected(
            f"model {model.name} gives {tuple(output.shape)} for one image; it must give logits of shape "
            f"(1, {num_classes})"
        )


def _unfit(model: ModelSpec, image_shape: Shape, error: Exception) -> SpecRejected:
    return SpecRejected(
        f"model {model.name} cannot work on images of {_size(image_shape)} ({error}); choose another model, or "
        "larger images with data.random_resized_crop (224 for most of torchvision's)"
    )


def _size(image_shape: Shape) -> str:
    if len(image_shape) != 3:
        return f"{image_shape[0]} numbers"
    channels, height, width = image_shape
    return f"{height}x{width} pixels and {channels} channel{'s' if channels > 1 else ''}"
