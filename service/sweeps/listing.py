"""Pages of sweeps, by state, label and user, or of the archived ones."""

from pathlib import Path
from typing import NamedTuple

from service.database.job_query import PageQuery
from service.database.sweep_store import SweepStore
from service.sweeps.trial_store import TrialStore
from service.sweeps.views import SweepSummary, summary


class SweepQuery(PageQuery):
    """Which sweeps to list. `labels` are those of the sweep's job, and `before` is the token of a page: those that come
    after it."""


class SweepPage(NamedTuple):
    """Some sweeps, newest first, and the token for those that follow."""

    sweeps: list[SweepSummary]
    next_page_token: str | None


def page(saved: SweepStore, folder: Path, query: SweepQuery) -> SweepPage:
    """One page. Only of the sweeps on it are the ledgers in the folder read."""
    heads = saved.find(query)
    shown = heads[: query.limit]
    stores = [TrialStore(folder / head.id) for head in shown]
    token = shown[-1].token if len(heads) > len(shown) else None
    return SweepPage([summary(store) for store in stores if store.exists], token)
