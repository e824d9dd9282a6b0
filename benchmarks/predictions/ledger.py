"""What has been measured, a line of JSON each, so that a benchmark that was interrupted goes on where it was."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.predictions.cases import Case, Place, cases_of
from trainers.cost.clusters.links import LinkTable
from trainers.cost.plan import StepProfile

Record = dict[str, Any]


@dataclass(frozen=True)
class Ledger:
    """A file that only grows."""

    path: Path

    def add(self, kind: str, **fields: Any) -> None:
        """Write a line, for good."""
        line = json.dumps({"kind": kind, **fields})
        with self.path.open("a+b") as file:
            if file.tell() and not self.path.read_bytes().endswith(b"\n"):
                file.write(b"\n")  # the line before was torn when somebody was killed
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self, kind: str) -> list[Record]:
        """Of a kind, the oldest first; a torn line is none."""
        found = list[Record]()
        for line in self.path.read_bytes().splitlines() if self.path.exists() else ():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record.get("kind") == kind:
                found.append(record)
        return found

    @property
    def profile(self) -> StepProfile | None:
        """Of one worker; the newest."""
        found = self.records("profile")
        return StepProfile.model_validate(found[-1]["profile"]) if found else None

    def links(self, place: Place) -> LinkTable | None:
        """Of a place; the newest."""
        found = [record for record in self.records("links") if record["place"] == place.title]
        return LinkTable.model_validate(found[-1]["links"]) if found else None

    def rates(self, case: Case) -> list[float]:
        """Examples a second, a measurement each."""
        return [record["examples_per_s"] for record in self.records("rate") if record["case"] == case.key]

    def missing(self, place: Place, rounds: int) -> list[Case]:
        """What is still to be measured, one entry a measurement: all cases in turns."""
        done = {case: len(self.rates(case)) for case in cases_of(place)}
        return [case for turn in range(rounds) for case, times in done.items() if times <= turn]
