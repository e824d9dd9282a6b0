"""The models and losses that have a name. Imports no torch, so that the service can list them."""

from functools import cache
from typing import Literal

LossName = Literal["cross_entropy", "logistic"]
"""What a loss can be called in a spec."""

PrecisionName = Literal["float32", "tf32", "bfloat16", "float16"]
"""In what a model's products can be computed."""

OWN: dict[str, str] = {
    "lenet5": "LeCun et al. 1998 with ReLU and max pooling; 61,706 parameters on 28x28 grey images",
    "convnet": "two convolutions and three fully connected layers, an AlexNet in small; 4.3 M parameters on 28x28",
    "mlp": "one hidden layer of 128; takes vectors too",
    "tabular": "rows of a table: embeddings of the categories beside the numbers, two hidden layers of 128",
    "alexnet_one_tower": "AlexNet with one tower, the network of paper 1; 61.8 M parameters on 224x224 in 1000 classes",
    "alexnet_released": "the same with the filters of the code released with paper 1; 61.1 M parameters",
    "alexnet_two_columns": "AlexNet as it was in 2012: two columns, which meet in two places; 61.0 M parameters",
    "convnet_two_columns": "two columns in small: four convolutions, three fully connected layers; 4.4 M on 28x28",
    "resnet_cifar": "He et al. 2016, section 4.2: residual, with batch norm, for small images; depth 20 and width 16",
    "unet": "a small U-Net for the task segmentation: two poolings, width 16 by default",
    "gpt": "a small GPT for the task language_model: 4 layers, 4 heads, width 128 by default",
}
"""Name and one line each."""

_FAMILIES: dict[str, str] = {
    "": "alexnet googlenet inception_v3 maxvit_t",
    "convnext_": "base large small tiny",
    "densenet": "121 161 169 201",
    "efficientnet_": "b0 b1 b2 b3 b4 b5 b6 b7 v2_l v2_m v2_s",
    "mnasnet": "0_5 0_75 1_0 1_3",
    "mobilenet_": "v2 v3_large v3_small",
    "regnet_x_": "16gf 1_6gf 32gf 3_2gf 400mf 800mf 8gf",
    "regnet_y_": "128gf 16gf 1_6gf 32gf 3_2gf 400mf 800mf 8gf",
    "resnet": "101 152 18 34 50",
    "resnext": "101_32x8d 101_64x4d 50_32x4d",
    "shufflenet_": "v2_x0_5 v2_x1_0 v2_x1_5 v2_x2_0",
    "squeezenet": "1_0 1_1",
    "swin_": "b s t v2_b v2_s v2_t",
    "vgg": "11 11_bn 13 13_bn 16 16_bn 19 19_bn",
    "vit_": "b_16 b_32 h_14 l_16 l_32",
    "wide_resnet": "101_2 50_2",
}
"""torchvision's classification models, written down because asking torchvision imports torch (a test compares)."""


@cache
def torchvision_names() -> tuple[str, ...]:
    """torchvision's classification models, in alphabetical order."""
    return tuple(sorted(prefix + end for prefix, ends in _FAMILIES.items() for end in ends.split()))


def is_hugging_face(name: str) -> bool:
    """Whether a name means a model of transformers."""
    return name.startswith("hf:")


def local_source(name: str) -> str:
    """The folder or file that stands after `hf:`; empty where that is a type of model, or the name is another."""
    source = name.removeprefix("hf:") if is_hugging_face(name) else ""
    return source if "/" in source or source.startswith((".", "~")) or source.endswith(".json") else ""


def model_names() -> tuple[str, ...]:
    """Every name that `model.name` may hold besides `module:function`."""
    return (*OWN, *torchvision_names())
