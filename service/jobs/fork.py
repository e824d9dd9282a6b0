"""A new job from a checkpoint of another, with changes to its spec."""

from typing import Any

from service.database.job_changes import OF_TRIALS
from service.database.job_store import Job
from service.errors import CheckpointNotFound, SpecInvalid, StateConflict
from service.plain_yaml import yaml_value
from service.spec import JobSpec, parse_spec
from service.storage.checkpoints import CheckpointView, checkpoints
from trainers import FieldError


def choose(job: Job, step: str | None) -> CheckpointView:
    """The checkpoint of that name, or the newest.

    Raises:
        CheckpointNotFound: The job has no checkpoint of that name.
        StateConflict: The job has no checkpoint at all.
    """
    found = checkpoints(job.run_dir)
    if not found:
        raise StateConflict(f"job {job.id} has no checkpoint yet; wait for one, or set checkpoint.every_epochs")
    if step is None:
        return found[-1]
    named = [one for one in found if step.isdigit() and int(one.step) == int(step)]
    if not named:
        kept = ", ".join(one.step for one in found)
        raise CheckpointNotFound(f"job {job.id} has no checkpoint {step!r}; it has {kept}")
    return named[0]


def forked_spec(job: Job, changes: dict[str, Any], begin: CheckpointView) -> JobSpec:
    """The job's spec with the changes, a merge patch (RFC 7396), in which null resets a field to its default.

    Raises:
        SpecInvalid: The changed spec is wrong, or there is nothing left to train.
    """
    if isinstance(changes.get("checkpoint"), dict) and "resume" in changes["checkpoint"]:
        message = "a fork begins from the checkpoint that it names; leave this out"
        raise SpecInvalid([FieldError(pointer="/checkpoint/resume", message=message)])
    parent = job.job_spec.model_dump(mode="json")  # as it is read now, whenever it was stored
    base = {**parent, "checkpoint": {**parent["checkpoint"], "resume": None}}
    base["labels"].pop(OF_TRIALS, None)  # a fork of a trial is a job of its own
    spec = parse_spec(merged(base, changes))
    if spec.epochs <= begin.epoch:
        message = f"the checkpoint has {begin.epoch} epochs behind it; set more than that"
        raise SpecInvalid([FieldError(pointer="/epochs", message=message)])
    return spec


def as_patch(overrides: list[str]) -> dict[str, Any]:
    """A merge patch from `a.b=value` lines. Values are read as YAML; an empty one resets the field to its default."""
    patch: dict[str, Any] = {}
    for override in overrides:
        path, equals, value = override.partition("=")
        *sections, last = path.strip().split(".")
        if not equals or not all((*sections, last)):
            raise SpecInvalid([FieldError(pointer="", message=f"{override!r} is not of the form field.field=value")])
        inner = patch
        for section in sections:
            found = inner.get(section)
            inner[section] = found if isinstance(found, dict) else {} if found is None else {"name": found}
            inner = inner[section]
        inner[last] = yaml_value(value)
    return patch


def merged(data: Any, patch: Any) -> Any:
    """RFC 7396. A section whose `name` changes starts out empty, because its other fields belonged to another kind."""
    if not isinstance(patch, dict):
        return patch
    found = dict(data) if isinstance(data, dict) else {}
    if "name" in patch and "name" in found and patch["name"] != found["name"] and "epochs" not in found:
        found = {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found
