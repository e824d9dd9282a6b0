"""The line of a spec's text that an error is about."""

import yaml

from api.problem import PlacedError
from service import FieldError, compose_yaml

MOST_BYTES = 64_000  # reading YAML a second time takes long; nobody writes more by hand


def placed(text: bytes, errors: list[FieldError]) -> list[FieldError]:
    """The same errors, with their lines where the text, YAML or JSON, tells them."""
    if len(text) > MOST_BYTES:
        return errors
    try:
        root = compose_yaml(text)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        return [_placed(one, line) for one in errors]
    except (yaml.YAMLError, RecursionError, ValueError):
        return errors
    return [_placed(one, _line(root, one.pointer)) for one in errors]


def _placed(error: FieldError, line: int | None) -> FieldError:
    return error if line is None else PlacedError(pointer=error.pointer, message=error.message, line=line)


def _line(node: yaml.Node | None, pointer: str) -> int | None:
    """Of the last part of the pointer that the text has."""
    line = None
    for part in pointer.split("/")[1:]:
        found = _inside(node, part.replace("~1", "/").replace("~0", "~"))
        if found is None:
            break
        line, node = found
    return line


def _inside(node: yaml.Node | None, part: str) -> tuple[int, yaml.Node] | None:
    """A field of a section or an item of a list, and its line."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value == part:
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
        item = node.value[int(part)]
        return item.start_mark.line + 1, item
    return None
