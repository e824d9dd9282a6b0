"""What has been measured, a line of JSON each, so that a benchmark that was interrupted goes on where it was."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.predictions.cases import Case, Place, cases_of
from trainers.cost.clusters.links import LinkTable
from trainers.cost.plan import StepProfile
from trainers.cost.profiled import profiled_fields

Record = dict[str, Any]
MOST_BY_OTHERS = 0.04
"""Of the machine's CPU time, while a job and its profile are measured; where others take more, it is measured again."""


@dataclass(frozen=True)
class Run:
    """One measurement of a job."""

    examples_per_s: float
    profile: StepProfile | None
    """Of the step, around the run and in its pauses, beside another worker; None in old ledgers, which have one
    profile for all."""


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
    def machine(self) -> Record:
        """What was measured on."""
        return (self.records("machine") or self.records("profile"))[-1]["machine"]  # type: ignore[no-any-return]

    @property
    def profile(self) -> StepProfile | None:
        """Of one worker, where the ledger has one for all runs; the newest."""
        found = self.records("profile")
        return StepProfile.model_validate(found[-1]["profile"]) if found else None

    def links(self, place: Place) -> LinkTable | None:
        """Of a place; the newest."""
        found = [record for record in self.records("links") if record["place"] == place.title]
        return LinkTable.model_validate(found[-1]["links"]) if found else None

    def runs(self, case: Case) -> list[Run]:
        """All measurements of a job that others did not disturb."""
        found = [record for record in self.records("rate") if record["case"] == case.key]
        found = [record for record in found if record.get("others", 0.0) <= MOST_BY_OTHERS]
        return [Run(record["examples_per_s"], _profile_of(case, record)) for record in found]

    def rates(self, case: Case) -> list[float]:
        """Examples a second, a measurement each."""
        return [run.examples_per_s for run in self.runs(case)]

    def missing(self, place: Place, rounds: int) -> list[Case]:
        """What is still to be measured, one entry a measurement: all cases in turns."""
        done = {case: len(self.rates(case)) for case in cases_of(place)}
        return [case for turn in range(rounds) for case, times in done.items() if times <= turn]


def _profile_of(case: Case, record: Record) -> StepProfile | None:
    """What the profile is of is not written down each time."""
    kept = record.get("profile")
    return kept and StepProfile.model_validate(kept | {"of": profiled_fields(case.spec)})
