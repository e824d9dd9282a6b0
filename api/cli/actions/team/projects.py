"""What the commands about projects do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.table import Table
from rich.text import Text

import service
from api.cli.display import id_column, wide_console
from api.client.client import Client

LIMITS = {"jobs": "jobs", "cpus": "cpus", "gpus": "gpus", "disk-gb": "disk_bytes"}
GB = 1e9


def without_limits(fields: dict[str, Any], no_limit: Sequence[str]) -> dict[str, Any]:
    """The same changes, with these limits taken away."""
    for name in no_limit:
        if name not in LIMITS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(LIMITS)}", param_hint="--no-limit")
        fields.setdefault("quota", {})[LIMITS[name]] = None
    return fields


@dataclass(frozen=True)
class People:
    """Who is added to the members or the admins of a project, and who is taken away."""

    more: Sequence[str]
    fewer: Sequence[str]

    def after(self, there: Sequence[str]) -> list[str]:
        """Those who are there then."""
        return sorted({*there, *self.more}.difference(self.fewer))


def edit_people(client: Client, name: str, members: People, admins: People) -> dict[str, list[str]]:
    """Members and admins of a project as they will be, as far as they change."""
    project, changed = client.project(name), {}
    for field, people, there in (("members", members, project.members), ("admins", admins, project.admins)):
        if people.more or people.fewer:
            changed[field] = people.after(there)
    return changed


def print_projects(found: Sequence[service.ProjectView], as_json: bool) -> None:
    """A table of projects, or one JSON object."""
    if as_json:
        typer.echo(json.dumps({"projects": [one.model_dump(mode="json") for one in found]}))
        return
    columns = ("project", "share", "jobs", "CPUs", "GPUs", "disk", "waiting", "members", "admins")
    table = Table(id_column(columns[0], (one.name for one in found)), *columns[1:], box=None)
    for one in found:
        rows = _rows(one)
        table.add_row(*(Text(rows[column]) for column in columns))
    wide_console().print(table)


def print_project(one: service.ProjectView, as_json: bool) -> None:
    """One project in full, or as one JSON object."""
    if as_json:
        typer.echo(one.model_dump_json())
        return
    table = Table(box=None, show_header=False)
    for name, value in _rows(one).items():
        table.add_row(Text(name, style="bold"), Text(value))
    wide_console().print(table)


def _rows(one: service.ProjectView) -> dict[str, str]:
    quota, use = one.quota, one.use
    disk = None if quota.disk_bytes is None else quota.disk_bytes / GB
    return {
        "project": one.name,
        "share": f"{one.share:g}",
        "jobs": _of(use.jobs, quota.jobs),
        "CPUs": _of(use.cpus, quota.cpus),
        "GPUs": _of(use.gpus, quota.gpus),
        "disk": f"{_of(round(use.disk_bytes / GB, 2), disk)} GB",
        "waiting": str(use.waiting),
        "members": ", ".join("everybody" if name == "*" else name for name in one.members) or "admins only",
        "admins": ", ".join(one.admins) or "none of its own",
    }


def _of(used: float, most: float | None) -> str:
    """What is used, and of how much."""
    return f"{used:g}" if most is None else f"{used:g} of {most:g}"
