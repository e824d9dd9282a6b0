"""What `millrace claims` does, once its arguments are read."""

import json
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from api.cli.actions.sweep_here import SweepHere
from api.cli.connection import complain
from api.cli.context import BAD_INPUT, OK, CliContext
from api.cli.display import wide_console
from service import (
    Claim,
    SpecInvalid,
    SweepSpec,
    TrialStore,
    all_claims,
    claim_of,
    claim_page,
    claim_report,
    evidence,
    evidence_before,
    sweeps_of,
)


@dataclass(frozen=True)
class ClaimsRequest:
    """What was asked."""

    names: list[str]
    quick: bool
    folder: Path
    sets: list[str]
    address: str | None
    num_cpus: int | None
    as_json: bool

    def folder_of(self, claim: Claim) -> Path:
        """A quick run has a folder of its own."""
        return (self.folder / f"{claim.name}{'-quick' if self.quick else ''}").absolute()


def list_claims(request: ClaimsRequest) -> None:
    """A table of all claims, with the verdicts of those that have been run in the folder, or one JSON object."""
    found = []
    for claim in all_claims().values():
        verdict = ""
        store = TrialStore(request.folder_of(claim))
        if store.exists:
            verdict = claim_report(claim, evidence(store), request.quick).verdict
        found.append({"number": claim.number, "name": claim.name, "claim": claim.claim, "source": claim.source,
                      "minutes": claim.minutes, "verdict": verdict})  # fmt: skip
    if request.as_json:
        typer.echo(json.dumps({"claims": found}))
        return
    table = Table("", "name", "claim", "source", "minutes", "verdict", box=None, padding=(0, 1, 1, 0))
    for row in found:
        cells = ("number", "name", "claim", "source", "minutes", "verdict")
        table.add_row(*(Text(f"{row[cell]:g}" if cell == "minutes" else str(row[cell])) for cell in cells))
    wide_console().print(table)
    typer.echo("`millrace claims NAME` runs one; `--quick` shows in a few minutes that it works.")


def run_claims(context: CliContext, request: ClaimsRequest) -> int:
    """Run them one after the other, and print each one's page. Returns the exit status."""
    try:
        asked = list(map(claim_of, request.names))
        for claim in asked:  # whatever is wrong is told before anything runs
            claim.asked(request.quick, request.sets)
            claim.asked_before(request.quick, request.sets)
    except SpecInvalid as error:
        complain(str(error))
        return BAD_INPUT
    reports, status = [], OK
    for claim in asked:
        folder = request.folder_of(claim)
        for spec, place in sweeps_of(claim, folder, request.quick, request.sets):
            status = max(status, _run(context, request, spec.resolved(Path.cwd()), place))
            if status:
                break
        store = TrialStore(folder)
        if not store.exists or status == BAD_INPUT:
            return status
        report = claim_report(claim, found := evidence(store), request.quick, evidence_before(folder))
        from service import claim_picture  # matplotlib

        (folder / "claim.json").write_text(report.model_dump_json(indent=1))
        (folder / "claim.md").write_text(claim_page(report, picture="claim.svg"))
        for form, data in claim_picture(report, found).items():
            (folder / f"claim.{form}").write_bytes(data)
        reports.append(report)
        if not request.as_json:
            typer.echo(claim_page(report))
            typer.echo(f"{folder}/claim.md, .json, .svg and .png hold this report")
        if status:
            break
    if request.as_json:
        typer.echo(json.dumps({"claims": [report.model_dump(mode="json") for report in reports]}))
    return status


def _run(context: CliContext, request: ClaimsRequest, spec: SweepSpec, folder: Path) -> int:
    """One claim's sweep, from where it is. Returns the exit status."""
    return SweepHere(
        spec,
        folder,
        request.address,
        request.num_cpus,
        title=lambda trials: f"Claim {spec.name}: {trials} trials",
        refused=lambda error: f"{error}; another --claims-dir begins anew",
        too_large=str,
    ).run(context)
