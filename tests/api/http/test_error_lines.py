"""Errors of a spec lead to the line that they are about."""

import pytest

from api.http.error_lines import placed
from service import FieldError, SpecInvalid, read_spec

SPEC = b"""\
# a comment
name: first
algorithm:
  name: downpour
  num_push: 0
workers: {count: 0,
          cpus: -1}
"a/b~c":
  - 1
  - x: 2
"""


def lines(text: bytes, *pointers: str) -> list[int | None]:
    errors = placed(text, [FieldError(pointer=pointer, message="wrong") for pointer in pointers])
    assert [(error.pointer, error.message) for error in errors] == [(pointer, "wrong") for pointer in pointers]
    return [getattr(error, "line", None) for error in errors]


def test_a_pointer_leads_to_its_field_or_the_section_around_it() -> None:
    assert lines(SPEC, "/name", "/algorithm/num_push", "/algorithm/gone", "/algorithm") == [2, 5, 3, 3]
    assert lines(SPEC, "/a~1b~0c/1/x", "/a~1b~0c/0", "/a~1b~0c/7") == [10, 9, 8]
    assert lines(SPEC, "/gone", "") == [None, None]


def test_json_has_lines_too() -> None:
    assert lines(b'{\n  "epochs": 0,\n  "batch": {"per_worker": 0}\n}', "/epochs", "/batch/per_worker") == [2, 3]


@pytest.mark.parametrize(
    ("text", "line"),
    [(b"name: first\nepochs: [1, 2\nseed: 0\n", 3), (b"a: 1\n\tb: 2\n", 2), (b"[" * 20_000, None), (b"\xff\xfe", None)],
)
def test_what_cannot_be_read_points_to_where_reading_stopped(text: bytes, line: int | None) -> None:
    assert lines(text, "") == [line]


def test_long_texts_are_read_once_only() -> None:
    assert lines(b"#" * 70_000 + b"\nepochs: 0\n", "/epochs") == [None]


def test_the_specs_own_errors_have_lines() -> None:
    with pytest.raises(SpecInvalid) as refused:
        read_spec(SPEC.replace(b'"a/b~c"', b"surprise"))
    found = {error.pointer: getattr(error, "line", None) for error in placed(SPEC, refused.value.errors)}
    assert found["/algorithm/num_push"] == 5
    assert found["/workers/count"] == 6
