"""The descriptions of fields in JSON Schemas."""

import subprocess
import sys

from pydantic import BaseModel, ConfigDict, Field

from trainers.documented import Documented, docstrings_of_fields


class Base(Documented):
    first: int = 0
    """Inherited by
    both."""

    silent: int = 0


class Inner(Documented):
    """What is in it."""

    text: str = "x"
    """A text."""


class Outer(Base):
    inner: Inner = Inner()
    """One in the other."""

    told: int = Field(default=0, description="said otherwise")
    """Not this."""

    first: int = 1  # type: ignore[assignment]
    """Another meaning."""


def test_a_schema_tells_what_stands_below_a_field() -> None:
    found = Outer.model_json_schema()
    fields = found["properties"]
    assert fields["first"]["description"] == "Another meaning."
    assert fields["told"]["description"] == "said otherwise"
    assert fields["inner"]["description"] == "One in the other."
    assert "description" not in fields["silent"]
    assert found["$defs"]["Inner"]["properties"]["text"]["description"] == "A text."
    assert Base.model_json_schema()["properties"]["first"]["description"] == "Inherited by\nboth."


def test_it_is_what_pydantic_finds_in_the_source() -> None:
    class Ours(Documented):
        one: int = 0
        """First."""

        both: str | None = None
        """A text
that is not indented."""

    class Theirs(BaseModel):
        model_config = ConfigDict(use_attribute_docstrings=True)

        one: int = 0
        """First."""

        both: str | None = None
        """A text
that is not indented."""

    assert Ours.model_json_schema() == Theirs.model_json_schema() | {"title": "Ours"}


def test_a_class_without_source_has_no_descriptions() -> None:
    made = type("Made", (Documented,), {"__annotations__": {"one": int}})
    assert docstrings_of_fields(made) == {}
    assert made.model_json_schema()["properties"] == {"one": {"title": "One", "type": "integer"}}


def test_no_source_is_read_before_a_schema_is_asked_for() -> None:
    program = "import trainers.spec, trainers.documented as d; print(d.docstrings_of_fields.cache_info().misses)"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "0"
