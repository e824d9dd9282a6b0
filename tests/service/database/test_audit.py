"""The audit in the database: bounded, whatever happens."""

from collections.abc import Iterator

import pytest

from service.database.audit import Act, Audit, AuditQuery
from service.database.identity import Requester, Role
from service.database.job_store import Store


@pytest.fixture
def audit(url: str) -> Iterator[Audit]:
    store = Store.open(url)
    yield store.audit
    store.close()


def test_it_is_bounded_and_refusals_drive_out_no_change(audit: Audit) -> None:
    by = Requester(user="ann", role=Role.user)
    for number in range(30):
        audit.record(by, Act(action="job.cancel", status=403 if number % 3 else 202, details={"number": number}))
    audit.prune(5)
    kept = audit.find(AuditQuery(limit=200))
    assert [entry.details["number"] for entry in kept if entry.status == 202] == [27, 24, 21, 18, 15]
    assert [entry.details["number"] for entry in kept if entry.status == 403] == [29, 28, 26, 25, 23]
    audit.record(by, Act(action="job.fork", details={"changes": "x" * 100_000}))
    assert audit.find(AuditQuery(limit=1))[0].details == {"omitted_characters": 100_015}
