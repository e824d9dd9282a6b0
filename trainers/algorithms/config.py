"""What every algorithm's config shares. Imports no torch: the spec is read in processes that have none."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class AlgorithmConfig(BaseModel):
    """Root of the configs in this folder; the field `name` of each tells them apart in a spec."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)

    name: str
    """The word that stands for the algorithm in a spec."""

    summary: ClassVar[str] = ""
    """One sentence for `GET /v1/algorithms` and the README."""

    source: ClassVar[str] = ""
    """Paper and section."""

    @property
    def uses_parameter_server(self) -> bool:
        """Whether a run of this algorithm starts shards."""
        raise NotImplementedError

    @property
    def is_synchronous(self) -> bool:
        """Whether all workers take every step together, so that a step number means the same for all of them."""
        raise NotImplementedError
