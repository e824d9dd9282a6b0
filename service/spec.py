"""JobSpec: a TrainSpec with what a queue needs to know, and how it is read from YAML, JSON and `--set a.b=c`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from service.errors import SpecInvalid, SpecUnreadable
from service.plain_yaml import load_yaml, yaml_value
from trainers import FieldError, TrainSpec, field_errors, is_given, refuse_given

TOLD = 3
"""Fields that are named of a stored spec that cannot be read."""
Model = TypeVar("Model", bound=BaseModel)

SCALARS = (bool, int, float, str)
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
LABEL_KEY = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$")
LABEL_LENGTH = 200
MAX_LABELS = 32
ROUNDS = 4
QUEUE_FIELDS = {"name", "labels", "project", "priority", "retries", "deadline_s", "ttl_s"}
SHORTHAND = {"workers": "count", "batch": "per_worker", "ps": "shards"}
"""What a scalar in place of a section stands for, where it is not its `name`."""


class JobSpec(TrainSpec):
    """A job: one training run, with a name, labels and a place in the queue."""

    name: str = Field(default="", pattern=NAME + "|^$")
    """Letters, digits, dots, dashes and underscores, at most 63; left out: the algorithm's and the dataset's names."""

    labels: dict[str, str] = Field(default={}, max_length=MAX_LABELS)
    """Words of your own to find jobs by: at most 32, keys of at most 63 characters, values of at most 200."""

    project: str = Field(default="default", pattern=NAME)
    """The project of which the job is: its quotas and its share of the cluster count. Its members may submit into it,
    and everybody into `default`."""

    priority: int = Field(default=0, ge=-100, le=100)
    """Of the waiting jobs of a project, the one with the highest priority starts first; within one, first come, first
    served. Running jobs of the project with a lower one make room, down to their `workers.min`."""

    retries: int = Field(default=0, ge=0, le=100)
    """How often the job starts again from its last checkpoint after it has failed. A spec that cannot run fails at
    once."""

    deadline_s: float | None = Field(default=None, gt=0, le=1e9)
    """Seconds after its submission at which the job is stopped, with a checkpoint, if it has not ended; null: never."""

    ttl_s: float | None = Field(default=None, ge=0, le=1e9)
    """Seconds after its end at which the job and its files are removed; null: when the service removes ended jobs."""

    @field_validator("name")
    @classmethod
    def _named(cls, name: str, info: ValidationInfo) -> str:
        algorithm, data = info.data.get("algorithm"), info.data.get("data")
        if name or algorithm is None or data is None:
            return name
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{algorithm.name}-{data.name}")[:63]

    @field_validator("task", "model", "data")
    @classmethod
    def _lies_somewhere(cls, section: Any) -> Any:
        if is_given(section.name):
            raise ValueError(str(refuse_given(section.name)))
        return section

    @field_validator("callbacks")
    @classmethod
    def _lie_somewhere(cls, callbacks: tuple[Any, ...]) -> tuple[Any, ...]:
        for one in callbacks:
            cls._lies_somewhere(one)
        return callbacks

    @field_validator("labels")
    @classmethod
    def _short(cls, labels: dict[str, str]) -> dict[str, str]:
        for key, value in labels.items():
            check_label(key, value)
        return labels

    @property
    def train(self) -> TrainSpec:
        """What the run itself needs."""
        return TrainSpec.model_validate(self.model_dump(exclude=QUEUE_FIELDS))


def read_spec(text: str | bytes, overrides: list[str] | None = None) -> JobSpec:
    """A spec from YAML (of which JSON is a part) and `a.b=c` overrides. Raises SpecInvalid."""
    return parse_spec(apply_overrides(load_yaml(text), overrides or []))


def parse_spec(data: Any) -> JobSpec:
    """A spec from plain data. Raises SpecInvalid with a pointer for each field that is wrong."""
    if not isinstance(data, dict):
        raise SpecInvalid([FieldError(pointer="", message=f"a spec is a mapping of fields, not {_kind(data)}")])
    if "job" in data:
        message = "this is the spec of a sweep, not of a job: `millrace sweep` takes it, and POST /v1/sweeps"
        raise SpecInvalid([FieldError(pointer="", message=message)])
    return checked(data, JobSpec)


def stored(kind: type[Model], data: Any, whose: str) -> Model:
    """The spec of a job or sweep as the store has it.

    Raises:
        SpecUnreadable: Another version of Millrace stored it.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        wrong = "; ".join(one.in_words for one in field_errors(error, kind)[:TOLD])
        raise SpecUnreadable(
            f"this Millrace cannot read the spec of {whose}, which another version stored ({wrong}); it is left as it "
            "is until a service of that version or a later one runs"
        ) from None


def checked(data: dict[str, Any], kind: type[Model]) -> Model:
    """A model of plain data. Raises SpecInvalid with all that is wrong.

    Python would take `true` for 1 and "5" for 5; who wrote that more likely meant another field.
    """
    try:
        model = kind.model_validate(data)
    except ValidationError as error:
        errors = field_errors(error, kind)
        raise SpecInvalid([*errors, *_bent_beside(errors, data, kind)]) from None
    except RecursionError:
        raise SpecInvalid([FieldError(pointer="", message="nested too deeply")]) from None
    if errors := _bent(data, model):
        raise SpecInvalid(errors)
    return model


def _bent(data: Any, model: BaseModel) -> list[FieldError]:
    """The values that were read as another kind than they were written."""
    return [
        FieldError(pointer=pointer, message=f"must be {_kind(value)}, not {_kind(found)}")
        for pointer, found, value in _scalars(data, model, "")
        if type(found) is not type(value) and _kind(found) != _kind(value)
    ]


def _bent_beside(errors: list[FieldError], data: dict[str, Any], kind: type[BaseModel]) -> list[FieldError]:
    """The same for data with errors: of what is left without the fields that are wrong."""
    for _ in range(ROUNDS):  # a field that is left out may make another wrong
        for error in errors:
            data = _without(data, error.pointer.split("/")[1:])
        try:
            return _bent(data, kind.model_validate(data))
        except ValidationError as error:
            errors = field_errors(error, kind)
    return []


def _without(section: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """The section without one of its fields, or the innermost one around it that is no section."""
    if not path:
        return {}
    key, *rest = path[0].replace("~1", "/").replace("~0", "~"), *path[1:]
    inner = section.get(key)
    if rest and isinstance(inner, dict):
        return {**section, key: _without(inner, rest)}
    return {name: value for name, value in section.items() if name != key}


def _scalars(data: Any, value: Any, pointer: str) -> Iterator[tuple[str, Any, Any]]:
    """Pointer, what was written and what was read, wherever both are single values."""
    if isinstance(data, dict) and isinstance(value, BaseModel | dict):
        for key, item in data.items():
            read = getattr(value, str(key), None) if isinstance(value, BaseModel) else value.get(key)
            yield from _scalars(item, read, f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}")
    elif isinstance(data, list | tuple) and isinstance(value, list | tuple):
        for index, (item, read) in enumerate(zip(data, value, strict=False)):
            yield from _scalars(item, read, f"{pointer}/{index}")
    elif isinstance(data, SCALARS) and isinstance(value, BaseModel):  # a short form: one of its fields has it
        if vars(value).get(str(data)) is True:
            return  # or is it, and is on: `compress: sign`
        if any(type(read) is type(data) and read == data for read in vars(value).values()):
            return
        same = [read for read in vars(value).values() if isinstance(read, SCALARS) and str(read) == str(data)]
        same += [read for read in vars(value).values() if isinstance(read, SCALARS) and read == data]
        yield pointer, data, next((read for read in same if _kind(read) == _kind(data)), same[0] if same else value)
    elif isinstance(data, SCALARS) and isinstance(value, SCALARS):
        yield pointer, data, value


def apply_overrides(data: Any, overrides: list[str]) -> Any:
    """The same data with each `a.b=value` set; the value is read as YAML. A scalar on the way is spelt out first."""
    for override in overrides:
        path, equals, value = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise SpecInvalid([FieldError(pointer="", message=f"{override!r} is not of the form field.field=value")])
        data = with_field(data if isinstance(data, dict) else {}, keys, yaml_value(value))
    return data


def with_field(section: dict[str, Any], keys: list[str], value: Any, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The same section with one field of it, or of a section in it, set."""
    key, rest = keys[0], keys[1:]
    if not rest:
        return {**section, key: value}
    inner = section.get(key)
    if not isinstance(inner, dict):
        inner = _spelt_out(key, inner) if not above else {}
    return {**section, key: with_field(inner, rest, value, (*above, key))}


def _spelt_out(key: str, scalar: Any) -> dict[str, Any]:
    """`algorithm: downpour` as `{name: downpour}`; a section that is not there has the default's name by itself."""
    return {} if scalar is None else {SHORTHAND.get(key, "name"): scalar}


def read_spec_file(path: Path, overrides: list[str] | None = None) -> JobSpec:
    """A spec from a file. Raises SpecInvalid, also when there is no such file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SpecInvalid([FieldError(pointer="", message=f"cannot be read: {error.strerror}")]) from None
    return read_spec(text, overrides)


def check_label(key: str, value: str) -> None:
    """Raise ValueError unless both can be kept."""
    if not LABEL_KEY.match(key):
        raise ValueError(f"{key!r} is no key: use letters, digits, dots, dashes, slashes; at most 63")
    if len(value) > LABEL_LENGTH:
        raise ValueError(f"the value of {key!r} has {len(value)} characters; use at most {LABEL_LENGTH}")
    if not is_text(value):
        raise ValueError(f"the value of {key!r} is no text that can be kept; leave out NUL and lone surrogates")


def is_text(value: str) -> bool:
    """Whether every database can hold it."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


KINDS = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}


def _kind(data: Any) -> str:
    if (word := KINDS.get(type(data))) is not None:
        return word
    return "another kind of value" if isinstance(data, BaseModel) else "a number"
