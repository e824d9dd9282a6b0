"""Sizes of memory in words. Imports no torch."""

UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_words(count: float) -> str:
    """So many bytes, in the largest unit of which there is one whole."""
    for unit, name in UNITS:
        if count >= unit:
            return f"{count / unit:,.{0 if count >= 100 * unit else 1}f} {name}"
    return f"{count:.0f} bytes"
