"""Plain data from YAML, in a time and a memory that its length bounds; nothing in it can name a Python object."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from service.errors import SpecInvalid
from trainers import FieldError

try:  # libyaml is ten times as fast; every wheel of PyYAML has it
    from yaml import CSafeLoader as SafeLoader
except ImportError:
    from yaml import SafeLoader  # type: ignore[assignment]

MAX_DEPTH = 100
"""Sections in sections. libyaml's own nodes are built by recursion in C, which ends the process if it is too deep."""
MAX_VALUES = 10_000
"""Values that a text may have. A spec has some hundred; a sweep, the values of its axes besides."""
MERGE = "tag:yaml.org,2002:merge"


class _Loader(SafeLoader):
    """YAML 1.1 takes 1e-3 for a text, since it has no dot; here it is the number that everybody means."""

    merged = 0

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self.seen: set[int] = set()  # ids of mappings as they are written: what `<<` brings may stand there twice

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge what `<<` names, if it is not too much: each alias in it doubles what the one before has doubled."""
        if id(node) not in self.seen:
            self.seen.add(id(node))
            _refuse_doubles(node)
        for key, value in node.value:
            if key.tag == MERGE:
                sources = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for source in sources:
                    if isinstance(source, yaml.MappingNode):
                        self.flatten_mapping(source)
                        self.merged += len(source.value)
                        if self.merged > MAX_VALUES:
                            problem = f"`<<` makes more than {MAX_VALUES} values of it"
                            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        super().flatten_mapping(node)


def _refuse_doubles(node: yaml.MappingNode) -> None:
    """Raise ConstructorError if a key stands twice in one section: the first would be lost without a word."""
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
            if key.value in lines:
                problem = f"`{key.value[:100]}` stands in line {lines[key.value]} already; leave one of them out"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            lines[key.value] = key.start_mark.line + 1


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_yaml(text: str | bytes) -> Any:
    """Plain data, that of an empty document being an empty mapping. Raises SpecInvalid."""
    data = yaml_value(text)
    return {} if data is None else data


def yaml_value(text: str | bytes) -> Any:
    """One value, which may be null. Raises SpecInvalid."""
    try:
        _check_shape(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        message = f"not valid YAML{place}: {getattr(error, 'problem', None) or error}"
    except (RecursionError, ValueError) as error:  # ValueError: a date that no calendar has, bytes that are no UTF-8
        message = f"not readable as YAML: {error}"
    raise SpecInvalid([FieldError(pointer="", message=message)])


def compose_yaml(text: str | bytes) -> yaml.Node | None:
    """The nodes, which know their lines. Raises YAMLError or ValueError, as `load_yaml` would."""
    _check_shape(text)
    node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    return node


def _check_shape(text: str | bytes) -> None:
    """Read the text without building anything. Raises ValueError if it is too deep or has too many values."""
    for depth, count in _shape(text):
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        if count > MAX_VALUES:
            raise ValueError(f"a spec has at most {MAX_VALUES} values")


def _shape(text: str | bytes) -> Iterator[tuple[int, int]]:
    """How deep each value stands, and how many there are so far."""
    depth = count = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.NodeEvent):
            count += 1
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        yield depth, count
