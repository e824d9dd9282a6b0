"""Prints what has become of a job or a sweep that was cancelled, paused or resumed."""

from api.cli.actions.jobs import print_job
from api.cli.actions.sweeps import print_sweep, print_sweep_state
from service import JobView, SweepView


def print_change(changed: JobView | SweepView, as_json: bool) -> None:
    """In a sentence, or as one JSON object."""
    if isinstance(changed, SweepView):
        print_sweep_state(changed, as_json)
    else:
        print_job(changed, as_json, f"Job {changed.id} is {changed.state}: {changed.message}")


def print_edited(changed: JobView | SweepView, as_json: bool) -> None:
    """In full, or as one JSON object."""
    if isinstance(changed, SweepView):
        print_sweep(changed, as_json)
    else:
        print_job(changed, as_json)
