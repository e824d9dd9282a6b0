"""Finds and calls a user's own `module:function`, and turns its errors into readable ones. Imports no torch."""

import contextlib
import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainers.errors import UserCodeFailed
from trainers.given import is_given, refuse_given

NUM_FRAMES = 4
"""Frames of a user's traceback that are shown: the last ones, closest to the error."""
PACKAGE = Path(__file__).parent


def is_user_name(name: str) -> bool:
    """Whether a name of a spec means a function of the user's (`module:function`), which is called where it is used.
    `hf:` is that of a library, and `ray:` is called by whoever holds the Ray Dataset."""
    return ":" in name and not name.startswith(("hf:", "ray:"))


@contextlib.contextmanager
def on_path(folder: str | None) -> Iterator[None]:
    """Append a user's folder to the import path, as in a run."""
    if folder is None:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def last_frames(error: BaseException) -> str:
    """The last frames of the traceback, indented, innermost last: of the user's code, and of what that calls where it
    is neither ours nor torch's."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    theirs = [frame for frame in frames if not _is_known(frame.filename)] or frames
    return "".join(traceback.format_list(theirs[-NUM_FRAMES:])).rstrip()


def is_of_ours(error: BaseException) -> bool:
    """Whether a file of this package raised it, and was not called by others: its sentence says all."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return bool(files) and Path(files[-1]).is_relative_to(PACKAGE) and all(map(_is_known, files))


def _is_known(file: str) -> bool:
    """Whether a file is one of ours, or torch's, through which a user's layers are called."""
    torch = sys.modules.get("torch")
    folders = [PACKAGE] if torch is None or torch.__file__ is None else [PACKAGE, Path(torch.__file__).parent]
    return any(Path(file).is_relative_to(folder) for folder in folders)


def failed(name: str, error: BaseException, doing: str = "raised") -> UserCodeFailed:
    """The error of a user's function, as a sentence with the last frames, for the event log."""
    return UserCodeFailed(f"{name} {doing} {type(error).__name__}: {error}\n{last_frames(error)}".rstrip())


def resolve(name: str) -> Callable[..., Any]:
    """The function behind `module:function`.

    Raises UserCodeFailed when the module cannot be imported or has no such function, SpecRejected where it is one that
    `train()` was given elsewhere.
    """
    module_name, _, function_name = name.partition(":")
    if is_given(name) and find_spec(module_name) is None:
        raise refuse_given(name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserCodeFailed(
            f"{name}: module {error.name!r} is not on the path; set `code` in the spec to the folder that holds it"
        ) from error
    except Exception as error:
        raise failed(name, error, "could not be imported:") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        near = difflib.get_close_matches(function_name, dir(module), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UserCodeFailed(f"{name}: module {module_name!r} has no function {function_name!r}{hint}")
    found: Callable[..., Any] = function
    return found


def taken(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that the function names; all of them where it takes any, or does not say."""
    try:
        parameters = inspect.signature(resolve(name)).parameters
    except (TypeError, ValueError):  # written in C
        return dict(arguments)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(arguments)
    return {argument: value for argument, value in arguments.items() if argument in parameters}


def call(name: str, **arguments: Any) -> Any:
    """What the user's `module:function` returns for these keyword arguments. Raises UserCodeFailed when it raises."""
    function = resolve(name)
    try:
        return function(**arguments)
    except (Exception, SystemExit) as error:
        raise failed(name, error) from error
