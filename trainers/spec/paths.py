"""The paths in a spec, which are taken from where it is submitted."""

import os
from pathlib import Path
from typing import Any

from trainers.data.names import RECORDS
from trainers.models.names import local_source

PATH_FIELDS = (("code",), ("data", "root"), ("data", "tokenizer"), ("model", "weights"), ("checkpoint", "resume"))
"""The fields that hold a path."""
SETS = ("validation", "test")
"""Those of `data` that may name a set besides the training set."""


def with_paths(spec: Any, base: Path) -> dict[str, Any]:
    """The parts of a `TrainSpec` that hold paths, with each resolved against the folder `base`."""
    update: dict[str, Any] = {}
    for section, *field in PATH_FIELDS:
        given = update.get(section, getattr(spec, section))
        if not field:
            update[section] = absolute(given, base)
        elif (path := getattr(given, field[0])) is not None:
            update[section] = given.model_copy(update={field[0]: absolute(path, base)})
    data = update["data"]
    if data.name in (*RECORDS, "webdataset"):  # others name sets that lie within their root
        sets = {name: absolute(given, base) for name in SETS if isinstance(given := getattr(data, name), str)}
        update["data"] = data.model_copy(update=sets)
    if source := local_source(spec.model.name):
        name = f"hf:{absolute(source, base)}"
        update["model"] = update.get("model", spec.model).model_copy(update={"name": name})
    return update


def absolute(path: str | None, base: Path) -> str | None:
    """A path resolved against the folder `base`; one with `..` is resolved by the file system, because of links."""
    if path is None:
        return None
    joined = os.path.join(base, os.path.expanduser(path))
    return os.path.realpath(joined) if ".." in joined.split(os.sep) else os.path.normpath(joined)
