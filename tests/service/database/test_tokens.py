"""Tokens: known by their hashes only, ended at once, and no way around."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import LOCAL, Role, Store, TokenRefused, Tokens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def tokens(path: Path) -> Iterator[Tokens]:
    store = Store.open(f"sqlite:///{path}")
    yield Tokens(store.engine)
    store.close()


def test_a_token_tells_who_comes(tokens: Tokens) -> None:
    assert not tokens.any()
    token, text = tokens.create("ann", Role.user)
    assert tokens.identify(text) is not None
    assert tokens.identify(text).user == "ann"  # type: ignore[union-attr]
    assert tokens.identify(text).role is Role.user  # type: ignore[union-attr]
    assert tokens.any()
    assert [one.id for one in tokens.list()] == [token.id]


def test_what_is_almost_a_token_opens_nothing(tokens: Tokens) -> None:
    _, text = tokens.create("ann", Role.admin)
    prefix, identity, secret = text.split("_", 2)
    tries = [
        "", "_", "__", text[:-1], text + "x", text.upper(), f"{prefix}_{identity}_", f"{prefix}_{identity}",
        f"x_{identity}_{secret}", f"{prefix}__{secret}", f"{prefix}_%_{secret}", f"{prefix}_' OR 1=1 --_{secret}",
        f"{prefix}_{identity}_{hashlib.sha256(secret.encode()).hexdigest()}", "\0", "ä" * 5000,
    ]  # fmt: skip
    assert [one for one in tries if tokens.identify(one) is not None] == []


def test_the_database_holds_no_secret(tokens: Tokens, path: Path) -> None:
    _, text = tokens.create("ann", Role.admin)
    tokens.engine.dispose()
    stored = b"".join(file.read_bytes() for file in path.parent.iterdir())
    secret = text.split("_", 2)[2]
    assert b"ann" in stored
    assert secret.encode() not in stored
    assert text.encode() not in stored


def test_a_token_that_is_revoked_or_old_is_refused(tokens: Tokens) -> None:
    token, text = tokens.create("ann", Role.admin)
    other = tokens.create("ann", Role.viewer)[1]
    assert not tokens.revoke(token.id).works
    assert tokens.identify(text) is None
    assert tokens.identify(other) is not None
    first = tokens.revoke(token.id).revoked
    assert first == tokens.revoke(token.id).revoked  # when it was ended stays
    assert tokens.identify(tokens.create("bob", Role.admin, lifetime_s=0)[1]) is None
    assert tokens.identify(tokens.create("bob", Role.admin, lifetime_s=1000)[1]) is not None
    with pytest.raises(TokenRefused, match="token list"):
        tokens.revoke("nosuch")


@pytest.mark.parametrize("user", ["", "../x", "a b", "x" * 64, "a\nb", "-x"])
def test_names_that_will_not_do(tokens: Tokens, user: str) -> None:
    with pytest.raises(TokenRefused, match="use letters"):
        tokens.create(user, Role.user)


def test_roles_are_in_order() -> None:
    assert [[one.covers(other) for other in Role] for one in Role] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert LOCAL.role is Role.admin
