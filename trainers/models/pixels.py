"""Models of images that give more than a class to each: one to each pixel, or boxes."""

import torch
from torch import nn

from trainers import user_code
from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.networks.unet import UNet
from trainers.models.registry import check_arguments, user_model
from trainers.models.weights import initialise


def build_pixel_model(model: ModelSpec, facts: DataFacts, seed: int) -> nn.Module:
    """The model of a spec with its initial weights, on the CPU, in training mode; its outputs are what the task
    segmentation takes.

    Raises SpecRejected and UserCodeFailed.
    """
    _check_start(model)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if user_code.is_user_name(model.name):
            module = user_model(model, num_classes=facts.pixel_classes, in_channels=facts.inputs[0])
        elif model.name == "unet":
            check_arguments(model, UNet)
            try:
                module = UNet(facts.pixel_classes, facts.inputs, **model.kwargs)  # type: ignore[arg-type]  # by name
            except (RuntimeError, ValueError, TypeError) as error:
                raise SpecRejected(f"model: unet cannot be made for {facts.inputs}: {error}") from error
        else:
            raise SpecRejected(
                f"model: {model.name} gives a class to an image, not to each pixel; take unet, hf:segformer, or a "
                "function of your own, which may call torchvision.models.segmentation"
            )
    if model.weights is not None:
        initialise(module, model)
    return module.train()


def build_detector(model: ModelSpec, facts: DataFacts, seed: int) -> nn.Module:
    """A detector by a function of the user's or of torchvision's, likewise; it is called with `num_classes`, of which 0
    is the ground.

    Raises SpecRejected and UserCodeFailed.
    """
    _check_start(model)
    if not user_code.is_user_name(model.name):
        raise SpecRejected(
            f"model: {model.name} gives no boxes; take model: task, or a function, as "
            "torchvision.models.detection:ssdlite320_mobilenet_v3_large"
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = user_model(model, num_classes=facts.classes)
    if model.weights is not None:
        initialise(module, model)
    return module.train()


def _check_start(model: ModelSpec) -> None:
    if model.init != "default" or model.zero_gamma:
        raise SpecRejected("model.init, model.zero_gamma: they are for classifiers; leave them out")
