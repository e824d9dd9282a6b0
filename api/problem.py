"""The form of every error that the service answers with (RFC 9457); the server writes it, and the clients read it."""

from pydantic import BaseModel

from service import FieldError


class PlacedError(FieldError):
    """One thing that is wrong with a spec, and where in its text."""

    line: int
    """The line of the body, from 1: that of the field, or else of the innermost section around it that is there."""


class Problem(BaseModel):
    """What is wrong with a request, and what to change."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    """A sentence for people."""
    remedy: str = ""
    """What to change, as a sentence."""
    errors: list[PlacedError | FieldError] = []
    """One for each field that is wrong. Pointers lead into the body; `/query/...` and `/header/...` lead beside it."""
