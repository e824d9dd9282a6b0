"""What there is to choose from, read off the spec itself."""

import inspect
from typing import Any, get_args

from pydantic import BaseModel

from service.spec import JobSpec


class Algorithm(BaseModel):
    """One parallel SGD."""

    name: str
    """The word for it in a spec."""
    summary: str
    source: str
    """Paper and section."""
    options: dict[str, Any]
    """JSON Schema of its section in a spec."""


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


def job_schema() -> dict[str, Any]:
    """The complete JSON Schema of a job spec."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **JobSpec.model_json_schema()}
