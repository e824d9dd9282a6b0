"""Packages that only some data need."""

from importlib.util import find_spec

from trainers.errors import SpecRejected


def need(package: str, extra: str, what: str) -> None:
    """Raises SpecRejected where a package of an extra is not installed. what: It is needed for."""
    if find_spec(package) is None:
        raise SpecRejected(f"{what} needs {package}, which is not installed: pip install 'millrace[{extra}]'")
