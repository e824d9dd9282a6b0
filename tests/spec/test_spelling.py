"""Errors of pydantic's in words for people: each kind that a field can have, and what stands there instead."""

from typing import Annotated, Any

import pytest
from pydantic import ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError, create_model

from trainers import TrainSpec
from trainers.spec.spec_errors import in_words
from trainers.spelling import WORDS, sentence

Strict = create_model("Strict", __config__=ConfigDict(extra="forbid"), needed=int)
CASES: list[tuple[Any, Any, str, str]] = [
    (bool, "maybe", "bool_parsing", 'must be true or false, but is "maybe"'),
    (bool, [], "bool_type", "must be true or false"),
    (dict[str, int], 3, "dict_type", "this is a section, with fields of its own"),
    (Strict, {"needed": 1, "more": 2}, "extra_forbidden", "there is no such field"),
    (FiniteFloat, float("inf"), "finite_number", "must be a finite number, but is Infinity"),
    (float, "many", "float_parsing", 'must be a number, but is "many"'),
    (float, {}, "float_type", "must be a number"),
    (Annotated[float, Field(gt=0)], 0, "greater_than", "must be greater than 0, but is 0"),
    (Annotated[int, Field(ge=1)], -1, "greater_than_equal", "must be at least 1, but is -1"),
    (int, 1.5, "int_from_float", "must be a whole number, but is 1.5"),
    (int, "two", "int_parsing", 'must be a whole number, but is "two"'),
    (int, None, "int_type", "must be a whole number"),
    (Annotated[float, Field(lt=1.0)], 1.0, "less_than", "must be less than 1, but is 1.0"),
    (Annotated[float, Field(le=4.0)], 5, "less_than_equal", "must be at most 4, but is 5"),
    (list[int], 3, "list_type", "this is a list: write it in brackets, [...]"),
    (Strict, {}, "missing", "is required, and has no default"),
    (Annotated[int, Field(multiple_of=8)], 9, "multiple_of", "must be a multiple of 8, but is 9"),
    (Annotated[str, Field(pattern="^a")], "b", "string_pattern_mismatch", 'must match the pattern ^a, but is "b"'),
    (Annotated[str, Field(max_length=3)], "long", "string_too_long", "the number of characters must be at most 3"),
    (Annotated[str, Field(min_length=1)], "", "string_too_short", "the number of characters must be at least 1"),
    (str, 3, "string_type", "must be a string, but is 3"),
    (Annotated[list[int], Field(max_length=1)], [1, 2], "too_long", "the number of entries must be at most 1"),
    (Annotated[list[int], Field(min_length=1)], [], "too_short", "the number of entries must be at least 1"),
    (tuple[int, ...], 3, "tuple_type", "this is a list: write it in brackets, [...]"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "error", "said"), CASES, ids=[case[2] for case in CASES])
def test_an_error_in_words(kind: Any, value: Any, error: str, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(value)
    (item,) = refused.value.errors()
    assert (item["type"], sentence(item)) == (error, said)


def test_each_kind_is_shown_here() -> None:
    assert {error for _, _, error, _ in CASES} == WORDS.keys()


def test_what_is_long_is_not_repeated() -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(int).validate_python("x" * 100)
    assert sentence(refused.value.errors()[0]) == "must be a whole number"


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"data": {"validation": 1.0}}, {"data.validation": "must be less than 1, but is 1.0"}),
        ({"data": {"validation": []}}, {"data.validation": "must be a number or a string"}),
        (
            {"task": {"kwargs": {"class_weight": {"a": 1}, "label_smoothing": None}}},
            dict.fromkeys(
                ("task.kwargs.class_weight", "task.kwargs.label_smoothing"),
                "must be true or false, a number, a string or a list",
            ),
        ),
        (
            {"model": {"kwargs": {"sizes": [[1], 2]}}},
            {"model.kwargs.sizes.0": "must be true or false, a number or a string"},
        ),
        (
            {"model": {"checkpoint_activations": [3]}},
            {"model.checkpoint_activations.0": "must be a string, but is 3"},
        ),
        (
            {"data": {"random_erasing": {"value": "noise"}}},
            {"data.random_erasing.value": """must be a number or 'random', but is "noise\""""},
        ),
    ],
)
def test_a_field_of_several_kinds_has_one_error(fields: dict[str, Any], found: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainSpec.model_validate(fields)
    items = in_words(caught.value, TrainSpec).errors()
    assert {".".join(map(str, item["loc"])): item["msg"] for item in items} == found
    assert len(items) == len(found)


def test_a_spec_that_is_written_in_python_has_the_same_sentences() -> None:
    """Of `train()`, say: what pydantic itself prints names neither the field that was meant nor what to write."""
    with pytest.raises(ValidationError) as caught:
        TrainSpec(**{"epoch": 3, "algorithm": {"name": "hybrid", "connect": {"rnk": 1}}, "seed": -1})
    found = {".".join(map(str, item["loc"])): item["msg"] for item in caught.value.errors()}
    assert found == {
        "epoch": "there is no such field; did you mean epochs?",
        "algorithm.connect.rnk": "there is no such field; did you mean rank?",
        "seed": "must be at least 0, but is -1",
    }
    many = {f"field{number}": 1 for number in range(1000)}
    with pytest.raises(ValidationError, match="and 950 more errors"):
        TrainSpec(**many)
