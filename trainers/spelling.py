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
NUMBER, WHOLE = "it has to be a number", "it has to be a whole number"
LIST = "this is a list: give what is in it in brackets, [...]"
WORDS = {
    "bool_parsing": "it has to be true or false",
    "bool_type": "it has to be true or false",
    "dict_type": "this is a section, with fields of its own",
    "extra_forbidden": "there is no such field",
    "finite_number": "it has to be a finite number",
    "float_parsing": NUMBER,
    "float_type": NUMBER,
    "greater_than": "it has to be greater than {gt}",
    "greater_than_equal": "it has to be greater than or equal to {ge}",
    "int_from_float": WHOLE,
    "int_parsing": WHOLE,
    "int_type": WHOLE,
    "less_than": "it has to be less than {lt}",
    "less_than_equal": "it has to be less than or equal to {le}",
    "list_type": LIST,
    "missing": "this field is needed, and has no default",
    "multiple_of": "it has to be a multiple of {multiple_of}",
    "string_pattern_mismatch": "it has to match the pattern {pattern}",
    "string_too_long": "this is too long: the largest number of characters is {max_length}",
    "string_too_short": "this is too short: the least number of characters is {min_length}",
    "string_type": "it has to be a text",
    "too_long": "this is too long: the largest number of entries is {max_length}",
    "too_short": "this is too short: the least number of entries is {min_length}",
    "tuple_type": LIST,
}
"""What belongs into a field, by the type of pydantic's error."""
KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "a text",
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
        return words.format(**bounds) + (_written(item.get("input")) if words.startswith("it has to") else "")
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
    return f"it has to be {kind}{_written(items[0].get('input'))}"


def _written(value: Any) -> str:
    """What stands in a field instead, if it is short."""
    if isinstance(value, str | int | float) and len(text := json.dumps(value)) <= WRITTEN:
        return f", and is {text}"
    return ""
