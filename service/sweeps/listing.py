"""Pages of sweeps, by state, label and user, or of the archived ones."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from service.database.job_query import Query
from service.sweeps.trial_store import TrialStore
from service.sweeps.views import SweepSummary, summary


class SweepQuery(Query):
    """Which sweeps to list. `labels` are those of the sweep's job, and `before` is the token of a page: those that come
    after it."""


class SweepPage(NamedTuple):
    """Some sweeps, newest first, and the token for those that follow."""

    sweeps: list[SweepSummary]
    next_page_token: str | None


class _Head(NamedTuple):
    """What a sweep is listed by."""

    created_us: int
    """Microseconds since 1970."""
    id: str
    store: TrialStore


def page(stores: Iterable[TrialStore], query: SweepQuery) -> SweepPage:
    """One page. Only of the sweeps on it are the trials read."""
    heads = [_Head(int(1e6 * one.get("created")), one.folder.name, one) for one in stores if _is_wanted(one, query)]
    heads.sort(key=lambda head: head[:2], reverse=True)
    if query.before is not None:
        created, _, sweep_id = query.before.partition("-")
        heads = [head for head in heads if head[:2] < (int(created), sweep_id)]
    shown = heads[: query.limit]
    token = f"{shown[-1].created_us}-{shown[-1].id}" if len(heads) > len(shown) else None
    return SweepPage([summary(head.store) for head in shown], token)


def _is_wanted(store: TrialStore, query: SweepQuery) -> bool:
    if query.states and store.state not in query.states:
        return False
    if bool(store.get("archived", False)) != query.archived:
        return False
    if query.user is not None and store.user != query.user:
        return False
    labels: dict[str, Any] = store.get("spec")["job"]["labels"] if query.labels else {}
    return all(key in labels and value in (None, labels[key]) for key, value in query.labels)
