"""A provider, and a service that signs people in through it."""

from collections.abc import Callable, Iterator

import pytest

from tests.api.conftest import Service
from tests.api.sign_in.provider import Provider, Visitor, providing

Enter = Callable[[], Visitor]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with providing() as one:
        yield one


@pytest.fixture
def guarded(serve: Callable[..., Service], provider: Provider) -> Service:
    return serve(sign_in=provider.sign_in)


@pytest.fixture
def enter(guarded: Service) -> Iterator[Enter]:
    """Opens browsers that have not been here."""
    opened: list[Visitor] = []

    def one() -> Visitor:
        opened.append(Visitor(guarded.url))
        return opened[-1]

    yield one
    for visitor in opened:
        visitor.http.close()
