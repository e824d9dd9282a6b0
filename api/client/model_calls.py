"""What a client asks of the service about finished models."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlencode

Which = Literal["model", "best", "raw"]
"""The finished model of a job, its best one, and that without `ema`."""
EXPORTED: dict[str, Any] = {"timeout": 900.0}
"""Options of a request for a model, which waits until it has been written in its format."""


def model_file(job_id: str, which: str, form: str) -> str:
    """The address of a model that a job has left, in a format; it is read piece by piece."""
    return f"/v1/jobs/{job_id}/model?{urlencode({'which': which, 'format': form})}"
