"""The errors of a spec, each with its place in what the user wrote and with what to write there."""

import difflib
import functools
import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Set
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from trainers.errors import FieldError
from trainers.spelling import OTHER_KIND, neither, sentence

MOST_ERRORS = 50
"""Of a spec that are told one by one: of ten thousand, the answers would fill the service's memory."""
UNIONS = frozenset({"algorithm", "optimizer", "outer", "schedule", "search"})
"""Fields whose form depends on their `name`; pydantic puts that name into the place of an error."""
KIND = re.compile(r"bool|(constrained-)?(int|float|str)|`?(list|tuple|literal)\[.*\]`?")
"""How pydantic calls the kinds of a union in the place of an error."""
ELSEWHERE = {"learning_rate": "lr", "batch_size": "per_worker", "num_workers": "count", "dataset": "data"}
"""What others call a field of ours."""


def field_errors(error: ValidationError, model: type[BaseModel]) -> list[FieldError]:
    """The errors of a validation of a model, with pointers into what the user wrote.

    Of more than MOST_ERRORS the rest is only counted.
    """
    found = _of_unions(error.errors(include_url=False))
    errors = [_field_error(item, model) for item in found[:MOST_ERRORS]]
    if len(found) > MOST_ERRORS:
        errors.append(FieldError(pointer="", message=f"and {len(found) - MOST_ERRORS:,} more errors"))
    return errors


def in_words(error: ValidationError, model: type[BaseModel]) -> ValidationError:
    """The same errors with our sentences, for whoever writes a spec in Python and sees what pydantic prints."""
    told, found = field_errors(error, model), _of_unions(error.errors(include_url=False))
    details = [
        InitErrorDetails(
            type=PydanticCustomError("spec", "{said}", {"said": one.message}),
            loc=tuple(one.pointer.split("/")[1:]),
            input=item["input"],
        )
        for one, item in zip(told, found, strict=False)  # of many, the last that is told counts the rest
    ]
    return ValidationError.from_exception_data(error.title, details)


def _of_unions(found: Iterable[Any]) -> list[Any]:
    """The same errors without the kinds that pydantic puts into the places of those in unions: of a value that is of
    one of the kinds what is wrong with it, of any other a single error."""
    told = list[Any]()
    for place, group in itertools.groupby(found, _union):
        if place is None:
            told += group
            continue
        others, of_kind = list[Any](), list[Any]()
        for item in group:
            within = item["loc"][len(place) + 1 :]
            is_other = not within and OTHER_KIND.fullmatch(item["type"])
            (others if is_other else of_kind).append(item | {"loc": place + within})
        told += _of_unions(of_kind) or [others[0] | {"type": "union", "msg": neither(others)}]
    return told


def _union(item: Any) -> tuple[int | str, ...] | None:
    """The place of the outermost union that an error lies in; None: in none."""
    location = item["loc"]
    return next((location[:i] for i, part in enumerate(location) if KIND.fullmatch(str(part))), None)


def _field_error(item: Any, model: type[BaseModel]) -> FieldError:
    location = item["loc"]
    is_tag = [i > 0 and location[i - 1] in UNIONS and len(location) > i + 1 for i in range(len(location))]
    parts = [part for part, skipped in zip(location, is_tag, strict=True) if not skipped]
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
    path = tuple(part for part in parts if isinstance(part, str))
    if item["type"] == "model_type" and (names := fields_below(model).get(path)):
        return FieldError(
            pointer=pointer, message=f"this is a section, with fields of its own: {', '.join(sorted(names))}"
        )
    if item["type"] != "extra_forbidden":
        return FieldError(pointer=pointer, message=sentence(item))
    form = location[-2] if any(is_tag[-2:-1]) else ""
    return FieldError(pointer=pointer, message=_no_such_field(path, form, model))


def _no_such_field(path: tuple[str, ...], form: str, model: type[BaseModel]) -> str:
    """form: The `name` of the section, where its fields depend on that; else empty."""
    forms = forms_of(path[:-1], model) if form else {}
    if others := sorted(name for name, fields in forms.items() if path[-1] in fields):
        takes = ", ".join(sorted(forms[form] - {"name"})) or "no fields"
        *first, last = others
        whose = f"{', '.join(first)} and {last} have" if first else f"{last} has"
        return f"{form} has no such field, which {whose}; {form} takes {takes}"
    near = _similar(path, forms.get(form), model)
    return "there is no such field" + (f"; did you mean {', '.join(near)}?" if near else "")


def forms_of(path: tuple[str, ...], model: type[BaseModel]) -> dict[str, frozenset[str]]:
    """Name of each form of the section at a path -> its fields."""
    sections = [model]
    for name in path:
        fields = [section.model_fields[name] for section in sections if name in section.model_fields]
        sections = [section for field in fields for section in _sections(field.annotation)]
    named = [section for section in sections if "name" in section.model_fields]
    return {
        name: frozenset(section.model_fields)
        for section in named
        for name in get_args(section.model_fields["name"].annotation)
        if isinstance(name, str)
    }


def _similar(path: tuple[str, ...], own: frozenset[str] | None, model: type[BaseModel]) -> list[str]:
    """Fields that somebody may mean who wrote this one: of the same section, or else of others, by their whole path.

    own: The fields of the section; None: those of all its forms.
    """
    fields = fields_below(model)
    own = fields.get(path[:-1], frozenset()) if own is None else own
    if near := [name for name in _near(path[-1], own, 0.6) if name in own]:
        return near
    known = _near(path[-1], {field for section in fields.values() for field in section}, 0.75)
    paths = [(*section, field) for field in known for section, names in fields.items() if field in names]
    return [".".join(one) for one in sorted(paths, key=len)][:3]


def _near(word: str, names: Set[str], cutoff: float) -> list[str]:
    found = difflib.get_close_matches(word, sorted(names | ELSEWHERE.keys()), cutoff=cutoff)
    return list(dict.fromkeys(name if name in names else ELSEWHERE[name] for name in found))


@functools.cache  # anyone may send an unknown field
def fields_below(model: type[BaseModel], depth: int = 4) -> dict[tuple[str, ...], frozenset[str]]:
    """Path of a section -> names of its fields, those of all its forms where it has several."""
    found: dict[tuple[str, ...], frozenset[str]] = {(): frozenset(model.model_fields)}
    for name, field in model.model_fields.items():
        for section in _sections(field.annotation) if depth else ():
            for path, names in fields_below(section, depth - 1).items():
                found[name, *path] = found.get((name, *path), frozenset()) | names
    return found


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field's type names, such as each of a union."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)
