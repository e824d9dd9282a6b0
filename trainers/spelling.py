"""What somebody may have meant by a word that there is not."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

MOST = 8
"""Names that are listed where none is similar."""
QUOTED = re.compile(r"'([^']*)'")


def unknown(word: str, names: Iterable[str]) -> str:
    """A sentence about a word that is none of the names: what it may have meant, or what there is."""
    known = list(dict.fromkeys(names))
    if near := difflib.get_close_matches(word, known):
        return f"there is no {word!r}; did you mean {', '.join(near)}?"
    rest = f" and {len(known) - MOST} more" if len(known) > MOST else ""
    return f"there is no {word!r}; there are {', '.join(known[:MOST])}{rest}"


def sentence(item: Any) -> str:
    """One error of pydantic's, for people. item: of `ValidationError.errors()`, with its context and its input."""
    context = item.get("ctx") or {}
    if item["type"] == "union_tag_invalid":
        return unknown(context["tag"], QUOTED.findall(context["expected_tags"]))
    if item["type"] in ("literal_error", "enum") and isinstance(item.get("input"), str):
        return unknown(item["input"][:100], QUOTED.findall(context["expected"]))
    if item["type"] in ("tuple_type", "list_type"):
        return "this is a list: give what is in it in brackets, [...]"
    return str(item["msg"]).removeprefix("Value error, ")
