"""Browsers that have not been here, at a service that signs people in through a provider."""

from collections.abc import Callable, Iterator

import pytest

from tests.api.conftest import Service
from tests.api.sign_in.provider import Visitor

Enter = Callable[[], Visitor]


@pytest.fixture
def enter(guarded: Service) -> Iterator[Enter]:
    """Opens one."""
    opened: list[Visitor] = []

    def one() -> Visitor:
        opened.append(Visitor(guarded.url))
        return opened[-1]

    yield one
    for visitor in opened:
        visitor.http.close()
