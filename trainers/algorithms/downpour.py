"""downpour."""
from typing import Literal
from pydantic import Field, ValidationInfo, field_validator
from trainers.algorithms.config import AlgorithmConfig

class DownpourConfig(AlgorithmConfig):
    """Downpour SGD."""
    name: Literal["downpour"] = "downpour"
    num_fetch: int = Field(default=1, ge=1, le=10000)
    """f"""
    num_push: int = Field(default=1, ge=1, le=10000)
    """f"""
    max_staleness: int | None = Field(default=None, ge=0)
    """f"""
    @field_validator("max_staleness")
    @classmethod
    def _can_progress(cls, max_staleness: int | None, info: ValidationInfo) -> int | None:
        num_push = info.data.get("num_push", 1)
        if max_staleness is not None and max_staleness < num_push - 1:
            raise ValueError(f"a worker that pushes every {num_push} minibatches is itself {num_push - 1} behind; use at least {num_push - 1}, or null")
        return max_staleness
