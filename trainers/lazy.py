"""A package whose names are looked up when they are first used, so that importing it imports nothing else."""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` of a package, made of the imports that its file does for type checking only.

    So each name stands once, on a line of its own, and two changes that add names seldom meet.
    """
    block = next(node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    home = {alias.name: str(node.module) for node in imports for alias in node.names}

    def look_up(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(home[name]), name)
        setattr(sys.modules[package], name, found)  # asked for once
        return found

    return sorted(home), look_up
