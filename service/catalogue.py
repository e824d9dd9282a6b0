"""What there is to choose from, read off the spec itself."""

import inspect
from typing import Any, get_args

from pydantic import BaseModel

from service.spec import JobSpec
from trainers import DATASETS, OWN, TrainSpec, images_of, known_examples, torchvision_names


class Algorithm(BaseModel):
    """One parallel SGD."""

    name: str
    """The word for it in a spec."""
    summary: str
    source: str
    """Paper and section."""
    options: dict[str, Any]
    """JSON Schema of its section in a spec."""


class Model(BaseModel):
    """One model that has a name."""

    name: str
    """The word for it in a spec."""
    summary: str
    source: str
    """`millrace` or `torchvision`."""


class Dataset(BaseModel):
    """One dataset that has a name."""

    name: str
    """The word for it in a spec."""
    summary: str
    examples: int | None
    """For training; null where only reading the set tells."""
    image: tuple[int, int, int] | None
    """Channels, height and width; null where only reading the set tells."""
    classes: int | None
    """Null where only reading the set tells."""


def algorithms() -> list[Algorithm]:
    """All algorithms that a spec can name."""
    annotation: Any = JobSpec.model_fields["algorithm"].annotation
    configs: list[Any] = [config for config in get_args(annotation) or (annotation,) if isinstance(config, type)]
    return sorted((_algorithm(config) for config in configs), key=lambda algorithm: algorithm.name)


def _algorithm(config: Any) -> Algorithm:
    return Algorithm(
        name=config.model_fields["name"].default,
        summary=inspect.cleandoc(config.__doc__).split("\n\n")[0].replace("\n", " "),
        source=config.source,
        options=config.model_json_schema(),
    )


def models() -> list[Model]:
    """All models that a spec can name, ours first."""
    own = [Model(name=name, summary=summary, source="millrace") for name, summary in OWN.items()]
    others = [
        Model(name=name, summary=f"{name} of torchvision's classification models", source="torchvision")
        for name in torchvision_names()
    ]
    return own + others


def datasets() -> list[Dataset]:
    """All datasets that a spec can name."""
    return [_dataset(name, summary) for name, summary in DATASETS.items()]


def _dataset(name: str, summary: str) -> Dataset:
    spec = TrainSpec.model_validate({"data": name})
    images = images_of(spec.model, spec.data)
    return Dataset(
        name=name,
        summary=summary,
        examples=known_examples(spec.data),
        image=None if images is None else images.shape,
        classes=None if images is None else images.classes,
    )


def job_schema() -> dict[str, Any]:
    """The complete JSON Schema of a job spec."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **JobSpec.model_json_schema()}
