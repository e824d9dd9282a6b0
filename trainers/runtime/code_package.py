"""The folder with a user's own code, as a package that travels to every node."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from trainers.errors import SpecRejected

OURS = ("trainers", "service", "api", "deploy")
"""Our packages: plain names, which a user's folder must not hide."""

LEFT_OUT = ("/runs/", ".git/", "__pycache__/", ".*_cache/", "node_modules/")
"""What is no code, in the words of `.gitignore`. Files of that name, and `.rayignore`, name what else stays behind."""

MOST_BYTES = 100 * 2**20
"""The largest package. It travels to each node before a worker starts there, through the memory of Ray's head."""


def package_code(folder: Path) -> dict[str, Any]:
    """A runtime environment with `folder` as the working directory; the package is uploaded once.

    Raises:
        SpecRejected: There is no such folder, it would hide Millrace's own packages, or it is too large.
    """
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

    if not folder.is_dir():
        raise SpecRejected(f"code: there is no folder {folder}")
    for name in OURS:
        if (folder / name).exists() or (folder / f"{name}.py").exists():
            raise SpecRejected(f"code: {folder / name} would hide Millrace's own package `{name}`; rename it")
    left_out = [*LEFT_OUT, *_virtual_environments(folder)]
    _check_size(folder, left_out)
    asked = {"working_dir": str(folder), "excludes": left_out}
    # Not in the current folder, Ray's default: where that is the user's, the package would grow by what it holds.
    with tempfile.TemporaryDirectory(prefix="millrace-code-") as scratch:
        packed: dict[str, Any] = upload_working_dir_if_needed(asked, include_gitignore=True, scratch_dir=scratch)
    return {"working_dir": packed["working_dir"]}


def _virtual_environments(folder: Path) -> list[str]:
    return [f"/{path.parent.name}/" for path in folder.glob("*/pyvenv.cfg")]


def _check_size(folder: Path, left_out: list[str]) -> None:
    """Raise SpecRejected, which names what is large, where the package would be too large."""
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    sizes = Counter[str]()  # by the name of the entry of `folder` that a file belongs to

    def count(path: Path) -> None:
        if path.is_file():
            sizes[path.relative_to(folder).parts[0]] += path.stat().st_size

    _dir_travel(folder, [_get_excludes(folder, left_out)], count, include_gitignore=True)
    if sizes.total() > MOST_BYTES:
        largest = ", ".join(f"{name} {megabytes(size)}" for name, size in sizes.most_common(3))
        raise SpecRejected(
            f"code: {folder} holds {megabytes(sizes.total())} ({largest}), and what travels to the workers may be "
            f"{megabytes(MOST_BYTES)}; name what is no code in its .rayignore, or move the code to a folder of its own"
        )


def megabytes(size: int) -> str:
    """A size in words."""
    return f"{size / 2**20:,.0f} MB"
