"""What `millrace run` does."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from api.cli.actions.jobs import print_result
from api.cli.actions.specs import has_code, read_job
from api.cli.connection import complain
from api.cli.context import BAD_INPUT, FAILED, OK, CliContext
from api.cli.display import display
from api.cli.folders import cannot_be_made
from api.cli.interrupts import Interrupts
from service import ClusterInfo, LocalRun, MillraceError, Result, State, StorageFull, new_job_id


@dataclass(frozen=True)
class RunRequest:
    """`millrace run` or `millrace sweep` with its options."""

    spec_file: Path
    sets: list[str]
    address: str | None
    folder: Path | None
    """Where it leaves everything; none: a new folder among the runs."""
    num_cpus: int | None
    as_json: bool
    trace: int = 0
    """How many steps of a job are recorded once it trains."""
    dashboard: bool = False
    """Whether a Ray of our own has its dashboard."""


def run_here(context: CliContext, request: RunRequest) -> int:
    """Train one job on a Ray of its own, or on an existing one. Returns the exit status."""
    spec = read_job(request.spec_file, request.sets)
    if not has_code(request.spec_file, spec.code):
        return BAD_INPUT
    job_id = new_job_id()
    run_dir = (request.folder or context.runs_dir / job_id).absolute()
    if (why := _refuses(run_dir)) is not None:
        complain(why)
        return BAD_INPUT
    runs = context.runs()
    needs = runs.needs(spec.train)
    try:
        with (
            Interrupts() as interrupts,
            context.cluster(request.address, needs, request.num_cpus, request.dashboard) as info,
        ):
            if (why := context.growth(request.address).refuses(spec.train, runs.total_resources())) is not None:
                complain(f"{request.spec_file}: /workers: {why}")
                return BAD_INPUT
            interrupts.install()
            result = _train(LocalRun(runs, job_id, spec, run_dir, request.trace), interrupts, info, request.as_json)
    except KeyboardInterrupt:
        complain("Ended before it started.")
        return FAILED
    except (MillraceError, StorageFull) as error:
        complain(str(error))
        return FAILED
    print_result(result, request.as_json, f"Everything is in {run_dir}")
    return OK if result.state is State.SUCCEEDED else FAILED


def _refuses(run_dir: Path) -> str | None:
    """Why no run can leave everything there; None if one can."""
    if os.path.exists(run_dir / "events.jsonl"):
        return f"{run_dir} holds a run already; choose another --run-dir"
    return cannot_be_made(run_dir)


def _train(run: LocalRun, interrupts: Interrupts, info: ClusterInfo, as_json: bool) -> Result:
    with display(sys.stderr if as_json else sys.stdout, run.spec.epochs) as shown:
        shown.say(f"Job {run.job_id}: {run.spec.name}")
        if info.dashboard_url:
            shown.say(f"Ray dashboard: {info.dashboard_url}  (if it asks for a token: `ray get-auth-token`)")
        interrupts.run = run
        try:
            return run.run(shown.show)
        except (KeyboardInterrupt, MillraceError):  # the log says which
            return run.result
