"""The optimizers: one folder each, with its section of the spec and its update rule. Imports no torch."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from trainers.optim.optimizers.adagrad.config import AdagradSpec
from trainers.optim.optimizers.adam.config import AdamSpec, AdamWSpec
from trainers.optim.optimizers.lamb.config import LambSpec
from trainers.optim.optimizers.lars.config import LarsSpec
from trainers.optim.optimizers.lion.config import LionSpec
from trainers.optim.optimizers.momentum.config import MomentumSpec
from trainers.optim.optimizers.muon.config import MuonSpec
from trainers.optim.optimizers.nesterov.config import NesterovSpec
from trainers.optim.optimizers.rmsprop.config import RmspropSpec
from trainers.optim.optimizers.sgd.config import SgdSpec
from trainers.optim.optimizers.torch_optim.config import TorchSpec, by_class

AnyOptimizer = Annotated[
    SgdSpec
    | MomentumSpec
    | NesterovSpec
    | RmspropSpec
    | AdagradSpec
    | AdamSpec
    | AdamWSpec
    | LionSpec
    | LarsSpec
    | LambSpec
    | MuonSpec
    | TorchSpec,
    Field(discriminator="name"),
    BeforeValidator(by_class),
]
"""Whichever optimizer a spec names. A new one is a new folder here and one more class in this union."""

__all__ = [
    "AdagradSpec",
    "AdamSpec",
    "AdamWSpec",
    "AnyOptimizer",
    "LambSpec",
    "LarsSpec",
    "LionSpec",
    "MomentumSpec",
    "MuonSpec",
    "NesterovSpec",
    "RmspropSpec",
    "SgdSpec",
    "TorchSpec",
]
