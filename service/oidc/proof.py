"""Whether a JSON Web Token is the provider's, meant for us, and still good. Source: RFC 7519, RFC 8725, OpenID Connect
Core 1.0, section 3.1.3.7."""

import hmac
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from service.errors import ProviderUnreachable, SignInRefused

if TYPE_CHECKING:
    from joserfc.jwk import Key

KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"}
)  # none that is symmetric: a public key must never be taken for a shared secret
TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""Not a logout token, nor whatever else the same keys sign."""
LEEWAY_S = 60
"""By which the provider's clock may differ from ours."""
LAST_S = 1e11
"""Seconds since 1970, in the year 5138."""
MOST_CHARACTERS = 16_384
LEAST_RSA_BITS = 2048


class KeySet:
    """The public keys of a provider."""

    def __init__(self, document: Any) -> None:
        """document: As the provider gives it (RFC 7517). Keys that are not for signatures, or weak, are left out.

        Raises ProviderUnreachable if there is none left.
        """
        listed = document.get("keys") if isinstance(document, dict) else None
        self.keys = [(one, key) for one in listed or () if (key := _public_key(one)) is not None]
        if not self.keys:
            raise ProviderUnreachable("the sign-in provider has published no key that its tokens could be checked by")

    def find(self, header: dict[str, Any]) -> "Key | None":
        """The one key that a token with this header can have been signed with."""
        algorithm, kid = header["alg"], header.get("kid")
        found = [
            key
            for told, key in self.keys
            if told.get("kty") == KINDS[algorithm[:2]]
            and told.get("alg") in (None, algorithm)
            and (kid is None or told.get("kid") == kid)
        ]
        return found[0] if len(found) == 1 else None


def header_of(text: str) -> dict[str, Any]:
    """The header of a token, of which nothing is proven yet. Raises SignInRefused for one that no token of ours has.

    Where a header names a key of its own (`jwk`, `jku`, `x5u`), nobody looks.
    """
    from joserfc.errors import JoseError
    from joserfc.jws import extract_compact

    if not text.isascii() or len(text) > MOST_CHARACTERS or text.count(".") != 2:
        raise _bad("it is no signed token")
    try:
        header = dict(extract_compact(text.encode()).headers())
    except (JoseError, ValueError, TypeError):
        raise _bad("it is no signed token") from None
    if header.get("alg") not in ALGORITHMS:
        raise _bad(f"it is signed by {str(header.get('alg'))[:20]!r}, which proves nothing here")
    if "crit" in header or "b64" in header:
        raise _bad("its header demands what is not known here")
    kind, kid = header.get("typ", "JWT"), header.get("kid")
    if not isinstance(kind, str) or kind.lower() not in TYPES:
        raise _bad("it is of another kind than those that let somebody in")
    if kid is not None and not isinstance(kid, str):
        raise _bad("the name of its key is no text")
    return header


def proven(text: str, key: "Key", issuer: str, audiences: Collection[str]) -> dict[str, Any]:
    """The claims of a token whose header was looked at, once all is proven: signature, issuer, audience, times.

    Raises SignInRefused.
    """
    from joserfc import jwt
    from joserfc.errors import ExpiredTokenError, JoseError

    try:
        claims: dict[str, Any] = jwt.decode(text, key, algorithms=[header_of(text)["alg"]]).claims
    except (JoseError, ValueError, TypeError):
        raise _bad("its signature is not the provider's") from None
    registry = jwt.JWTClaimsRegistry(
        leeway=LEEWAY_S,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "values": list(audiences)},
        sub={"essential": True},
        exp={"essential": True},
        iat={"essential": True},
    )
    try:
        registry.validate(claims)
    except ExpiredTokenError:
        raise _bad("it has expired") from None
    except JoseError as error:
        said = {"iss": "another issuer made it", "aud": "it is meant for somebody else"}
        raise _bad(said.get(str(getattr(error, "claim", "")), f"a claim does not hold: {error}")) from None
    if not all(0 <= claims[name] <= LAST_S for name in ("exp", "iat")):
        raise _bad("its times are none")
    if "events" in claims:
        raise _bad("it tells of an event, and lets nobody in")
    return claims


def check_sign_in(claims: dict[str, Any], client_id: str, nonce: str) -> None:
    """What an ID token says besides, that answers one sign-in of ours. Raises SignInRefused."""
    told, party = claims.get("nonce"), claims.get("azp")
    if not isinstance(told, str) or not hmac.compare_digest(told.encode(), nonce.encode()):
        raise _bad("it answers another sign-in (nonce)")
    is_for_several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
    if party != client_id and (party is not None or is_for_several):
        raise _bad("it was made for another client (azp)")


def _public_key(told: Any) -> "Key | None":
    """A key of the set, if signatures are checked with it."""
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry

    if not isinstance(told, dict) or told.get("use", "sig") != "sig" or told.get("kty") not in set(KINDS.values()):
        return None
    try:
        if told["kty"] == "RSA" and len(told["n"]) * 6 < LEAST_RSA_BITS:
            return None
        return JWKRegistry.import_key({name: told[name] for name in told if name not in ("d", "p", "q", "key_ops")})
    except (JoseError, ValueError, TypeError, KeyError):
        return None


def _bad(why: str) -> SignInRefused:
    return SignInRefused("token", f"the token of the sign-in provider is not taken: {why}")
