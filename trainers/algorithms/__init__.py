"""The algorithms: a folder each, with its config and its step. A new algorithm is one new folder here."""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from trainers.algorithms.config import AlgorithmConfig

for _module in pkgutil.iter_modules(__path__):
    if _module.ispkg:
        importlib.import_module(f"{__name__}.{_module.name}.config")

CONFIGS: dict[str, type[AlgorithmConfig]] = {
    cls.model_fields["name"].default: cls
    for cls in sorted(AlgorithmConfig.__subclasses__(), key=lambda cls: cls.__name__)
}
"""Every config class by the name it has in a spec."""

if TYPE_CHECKING:
    AnyAlgorithm = AlgorithmConfig
else:
    AnyAlgorithm = Annotated[Union[tuple(CONFIGS.values())], Field(discriminator="name")]  # noqa: UP007
