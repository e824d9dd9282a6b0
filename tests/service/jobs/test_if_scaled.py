"""What is said of a job's result before it goes on with other workers."""

from typing import Any

import pytest

from service.jobs.views import if_scaled
from service.spec import parse_spec


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "The result stays the same; only"),
        ({"algorithm": {"name": "sync", "reduction": "fast"}}, "up to rounding"),
        ({"algorithm": "parallel_sgd"}, "The result stays the same; only"),
        ({"algorithm": "downpour"}, "No acknowledged update is lost"),
        ({"elastic": {"mode": "scale_batch"}}, "the learning rate follows it"),
        (
            {"algorithm": {"name": "sync", "form": "parameter_server", "backup": 1}, "workers": 3},
            "the last ones of a step",
        ),
    ],
)
def test_what_becomes_of_the_result(spec: dict[str, Any], told: str) -> None:
    assert told in if_scaled(parse_spec(spec))
