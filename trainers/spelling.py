"""What somebody may have meant by a word that there is not."""

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

MOST = 12
"""Names that are listed where none is similar."""
MEANT = {"gpu": "cuda"}
"""What others say for a name of ours."""
QUOTED = re.compile(r"'([^']*)'")
NUMBER, WHOLE = "must be a number", "must be a whole number"
LIST = "this is a list: write it in brackets, [...]"
WORDS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "this is a section, with fields of its own",
    "extra_forbidden": "there is no such field",
    "finite_number": "must be a finite number",
    "float_parsing": NUMBER,
    "float_type": NUMBER,
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": WHOLE,
    "int_parsing": WHOLE,
    "int_type": WHOLE,
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": LIST,
    "missing": "is required, and has no default",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "string_too_long": "the number of characters must be at most {max_length}",
    "string_too_short": "the number of characters must be at least {min_length}",
    "string_type": "must be a string",
    "too_long": "the number of entries must be at most {max_length}",
    "too_short": "the number of entries must be at least {min_length}",
    "tuple_type": LIST,
}
"""What belongs into a field, by the type of pydantic's error."""
KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "a string",
    "list": "a list",
    "tuple": "a list",
}
"""What a value is not, by how the types of pydantic's errors begin."""
OTHER_KIND = re.compile(rf"({'|'.join(KINDS)})_(type|parsing)|int_from_float|literal_error")
"""The types of pydantic's errors that say so; others say what is wrong with a value of the right kind."""
WRITTEN = 40
"""Characters of what was written there instead that a sentence repeats."""


def unknown(word: str, names: Iterable[str]) -> str:
    """A sentence about a word that is none of the names: what it may have meant, or what there is."""
    known = {name.lower(): name for name in names}  # in their order
    near = difflib.get_close_matches(MEANT.get(word.lower(), word.lower()), known)
    if near:
        return f"there is no {word!r}; did you mean {', '.join(known[one] for one in near)}?"
    rest = f" and {len(known) - MOST} more" if len(known) > MOST else ""
    return f"there is no {word!r}; there are {', '.join(list(known.values())[:MOST])}{rest}"


def sentence(item: Any) -> str:
    """One error of pydantic's, for people. item: of `ValidationError.errors()`, with its context and its input."""
    context = item.get("ctx") or {}
    if item["type"] == "union_tag_invalid":
        return unknown(context["tag"], QUOTED.findall(context["expected_tags"]))
    if item["type"] in ("literal_error", "enum") and isinstance(item.get("input"), str):
        return unknown(item["input"][:100], QUOTED.findall(context["expected"]))
    if (words := WORDS.get(item["type"])) is not None:
        bounds = {name: f"{value:.12g}" if isinstance(value, float) else value for name, value in context.items()}
        repeats = words.startswith(("must be", "must match"))
        return words.format(**bounds) + (_written(item.get("input")) if repeats else "")
    return str(item["msg"]).removeprefix("Value error, ")


def neither(items: Sequence[Any]) -> str:
    """The errors of a value that is of none of several kinds, of type OTHER_KIND each, as one sentence."""
    kinds = [
        item["ctx"]["expected"] if item["type"] == "literal_error" else KINDS[item["type"].partition("_")[0]]
        for item in items
    ]
    if "a number" in kinds:
        kinds = [kind for kind in kinds if kind != "a whole number"]
    *first, last = dict.fromkeys(kinds)
    kind = f"{', '.join(first)} or {last}" if first else last
    return f"must be {kind}{_written(items[0].get('input'))}"


def _written(value: Any) -> str:
    """What stands in a field instead, if it is short."""
    if isinstance(value, str | int | float) and len(text := json.dumps(value)) <= WRITTEN:
        return f", but is {text}"
    return ""
