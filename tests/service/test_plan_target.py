"""The target of a plan: of which set its metric is, what is refused, and whether less of it is better."""

from typing import Any

import pytest

from service import JobSpec, Target, read_target

LANGUAGE = {"task": "language_model", "data": {"name": "text", "root": "/t.txt"}}


def target(text: str, **fields: Any) -> Target:
    return read_target(text, JobSpec.model_validate(fields))


@pytest.mark.parametrize(
    ("data", "on"),
    [
        ({}, "test"),
        ({"validation": 0.2}, "test"),
        ({"validation": "/v.txt"}, "test"),
        ({"test": "/v.txt"}, "validation"),
        ({"validation": 0.2, "test": "/v.txt"}, "validation"),
    ],
)
def test_a_text_has_a_validation_set_where_another_is_the_test_set(data: dict[str, object], on: str) -> None:
    spec = LANGUAGE | {"data": {"name": "text", "root": "/t.txt", **data}}
    assert target("perplexity=28", **spec).metric == f"{on}_perplexity"


def test_less_is_better_where_the_task_says_so() -> None:
    assert target("bits_per_byte=2", **LANGUAGE) == Target("test_bits_per_byte", 2, is_lower=True)
    assert target("test_accuracy=0.9") == Target("test_accuracy", 0.9, is_lower=False)
    assert target("test_error_median=0.1") == Target("test_error_median", 0.1, is_lower=True)


@pytest.mark.parametrize("data", ["mine:sets", {"name": "hf", "root": "/rows"}, "ray:mine:rows"])
def test_data_that_may_bring_a_validation_set_may_be_asked_for_either(data: object) -> None:
    for metric in ("test_loss", "validation_loss"):
        assert target(f"{metric}=1", data=data).metric == metric
    with pytest.raises(ValueError, match="only the data tell; write test_loss=1, or with such a set validation_loss=1"):
        target("loss=1", data=data)


def test_what_a_task_of_ones_own_measures_is_not_known() -> None:
    assert target("found=3", task="mine:Task", data="digits", model="mlp").metric == "test_found"
