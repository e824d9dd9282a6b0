"""A spec as somebody would write it."""

from pathlib import Path
from typing import Any

import pytest

from service.errors import SpecInvalid
from service.plain_yaml import load_yaml
from service.short_spec import short_spec
from service.spec import parse_spec

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("spec", "short"),
    [
        ({"name": "a"}, {"optimizer": "momentum", "name": "a"}),
        (
            {"algorithm": "downpour", "workers": 3, "optimizer": {"lr": 0.5}, "name": "a"},
            {
                "algorithm": "downpour",
                "workers": {"count": 3},
                "optimizer": {"name": "adagrad", "lr": 0.5},
                "name": "a",
            },
        ),
        (
            {"algorithm": {"name": "sync", "reduction": "fast"}, "optimizer": "adamw", "seed": 3, "name": "a"},
            {"algorithm": {"name": "sync", "reduction": "fast"}, "optimizer": "adamw", "seed": 3, "name": "a"},
        ),
    ],
)
def test_only_what_differs_is_written(spec: dict[str, Any], short: dict[str, Any]) -> None:
    assert short_spec(parse_spec(spec)) == short


def test_every_example_reads_back_as_the_same() -> None:
    compared = 0
    for path in EXAMPLES.rglob("*.yaml"):
        try:
            spec = parse_spec(load_yaml(path.read_text()))
        except SpecInvalid:  # of a sweep, or a cluster
            continue
        assert parse_spec(short_spec(spec)) == spec, path
        compared += 1
    assert compared > 50
