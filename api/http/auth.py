"""Who comes in, and with what: tokens and roles, foreign pages, bodies that are too large. Before every route."""

import asyncio
import functools
import ipaddress
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.cookies import READING, Cookies
from api.http.problems import ProblemError, answer
from service import (
    FOR_THE_SERVICE,
    LOCAL,
    Caller,
    FieldError,
    Identity,
    JobSummary,
    ModelVersion,
    Projects,
    ProviderUnreachable,
    Requester,
    Role,
    SignIn,
    SignInRefused,
    SweepSummary,
    Tokens,
)

MAX_BODY_BYTES = 1_000_000  # of any request; a spec has a smaller bound of its own
BODY_WITHIN_S = 30.0
OPEN = frozenset({"/", "/docs", "/favicon.ico", "/guide", "/healthz", "/openapi.json", "/readyz"})
SIGN_IN = frozenset({"/v1/sign-in", "/v1/sign-in/begin", "/v1/sign-in/callback"})
"""For whoever is not in yet."""
LOGIN = "/v1/sign-in/login"
"""Where a command line that has a code gets in."""
OPEN_BELOW = ("/docs/", "/guide/", "/page/", "/static/")
"""Static files, which say nothing of any job. What the page shows, it asks for with its reader's token."""
ADMIN = ("/v1/audit", "/v1/webhooks")
ADMIN_CHANGES = ("/v1/projects",)
"""What everybody may read, and an admin may change; one that is there is edited by its own admins, too."""
OWN_TOKEN = "/v1/me/token"
"""Whoever shows a token may end it."""
ADDRESS_CHARACTERS = 64
DOORMEN = 2
"""Threads that look tokens up, and do nothing else: all others may wait for Ray, or for a storage that does not answer.
"""
AS_DATA = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; sandbox"),
)
"""Logs and figures hold what users wrote; opened by themselves they are no page."""
HOST = re.compile(r"^(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?$")


@dataclass(frozen=True)
class Access:
    """Who may do what at one server."""

    tokens: Tokens | None = None
    is_required: bool = False
    """Whether every caller shows a token. If not, who shows none is this machine's own user, who may do everything."""
    code_role: Role = Role.admin
    """The least role whose jobs may run code of their own."""
    sign_in: SignIn | None = None
    """The provider through which one may sign in instead."""


LOCAL_ONLY = Access()
"""This machine's own user, and nobody else."""


def demanded(method: str, path: str) -> Role | None:
    """The least role for a request; none: anybody. A route that is added is closed until it is named here."""
    if method in READING and (path in OPEN or path in SIGN_IN or path.startswith(OPEN_BELOW)):
        return None
    if method == "POST" and path == LOGIN:
        return None
    is_open = method in READING or (method == "PATCH" and path.startswith("/v1/projects/"))
    closed = ADMIN if is_open else (*ADMIN, *ADMIN_CHANGES)
    if any(path == prefix or path.startswith(f"{prefix}/") for prefix in closed):
        return Role.admin
    return Role.viewer if method in READING or path == OWN_TOKEN else Role.user


def caller(request: Request) -> Requester:
    """Who sent a request that the guard let in, and from where."""
    identity: Requester = request.state.identity
    return identity


def check_code(request: Request, access: Access, found: list[FieldError]) -> None:
    """Raise ProblemError if the spec names code of the caller's own, which the caller may not run."""
    if found and not caller(request).role.covers(access.code_role):
        detail = f"own code is for the role {access.code_role} here, yours is {caller(request).role}"
        raise ProblemError(
            403, detail, errors=found, remedy="name a model and a dataset that /v1/models and /v1/datasets list"
        )


def check_member(request: Request, projects: Projects, name: str) -> None:
    """Raise ProblemError if the caller may not submit into a project. Whether there is one is for others to find."""
    project, identity = projects.known.get(name), caller(request)
    if project is None or name in identity.projects or identity.role.covers(Role.admin):
        return
    if not project.admits(identity.user):
        detail = f"{identity.user} is no member of project {name}"
        errors = [FieldError(pointer="/project", message=detail)]
        whom = " or ".join([*project.admins, "an admin"])
        raise ProblemError(403, detail, errors=errors, remedy=f"ask {whom} for `millrace projects edit {name}`")


def check_leads(request: Request, projects: Projects, name: str, changed: Collection[str]) -> None:
    """Raise ProblemError if the caller may not change these fields of a project. Its own admins may change who belongs
    to it; what it may have is for admins of the service."""
    project, identity = projects.get(name), caller(request)
    if identity.role.covers(Role.admin):
        return
    if identity.user not in project.admins:
        whom = " or ".join([*project.admins, "an admin"])
        raise ProblemError(403, f"{identity.user} is no admin of project {name}", remedy=f"ask {whom}")
    if kept := sorted(FOR_THE_SERVICE.intersection(changed)):
        detail = f"admins of project {name} change its members and admins, not its {' and '.join(kept)}"
        raise ProblemError(403, detail, f"/{kept[0]}", remedy="ask an admin of the service")


def check_owner(
    request: Request, owned: JobSummary | SweepSummary | ModelVersion, projects: Projects | None = None
) -> None:
    """Raise ProblemError if it is another user's. Admins may stop, and remove, anybody's, and admins of a project those
    of its jobs."""
    identity = caller(request)
    if owned.user == identity.user or identity.role.covers(Role.admin):
        return
    if projects is not None and not isinstance(owned, ModelVersion):
        project = projects.known.get(owned.project)
        if project is not None and identity.user in project.admins:
            return
    detail = f"{owned.id} is {owned.user}'s, and you are {identity.user}"
    own = "" if isinstance(owned, ModelVersion) else "; a job's fork would be your own"
    raise ProblemError(403, detail, remedy=f"ask {owned.user} or an admin{own}")


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access
        self.threads = ThreadPoolExecutor(DOORMEN, thread_name_prefix="tokens")
        self.cookies = None if access.sign_in is None else Cookies(access.sign_in.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        assert scope["type"] == "http", "nothing here speaks WebSocket"
        try:
            await self._admit(scope, Headers(scope=scope))
        except ProblemError as error:
            await answer(error)(scope, receive, send)
            return
        await self.app(scope, bounded(receive, MAX_BODY_BYTES), hardened(send) if _is_data(scope["path"]) else send)

    async def _admit(self, scope: Scope, headers: Headers) -> None:
        """Say who sends the request, and raise ProblemError unless they may."""
        method, path = scope["method"], scope["path"]
        if "\0" in path:
            raise ProblemError(404, "no address has a NUL character in it")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length[:18]) > MAX_BODY_BYTES:
            raise ProblemError(413, f"the body has {length} bytes; at most {MAX_BODY_BYTES} are taken")
        role = demanded(method, path)
        identity = await self._identify(scope, headers, is_open=role is None)
        scope["state"]["identity"] = _requester(identity, scope)
        if identity.session and self.cookies is not None:
            self.cookies.refuse_forged(method, headers)
        if role is not None and not identity.role.covers(role):
            what = "sign-in" if identity.session else "token"
            detail = f"this demands the role {role}, the {what} of {identity.user} has the role {identity.role}"
            raise ProblemError(403, detail, remedy=f"ask an admin for `millrace token create --role {role}`")

    async def _identify(self, scope: Scope, headers: Headers, is_open: bool) -> Identity:
        scheme, _, text = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.access.tokens is not None:
            return await self._bearer(text.strip(), scope)
        if scheme:
            raise _unknown("only `Authorization: Bearer TOKEN` is known here", "Bearer")
        if not self.access.is_required:
            refuse_foreign(headers)
            return LOCAL
        if is_open:  # whoever comes; a session that has ended is in nobody's way here
            return Identity(user="", role=Role.viewer)
        if self.cookies is not None and (cookie := self.cookies.value(headers, self.cookies.session)):
            return await self._session(cookie)
        raise _unknown("this server asks for a token", "Bearer")

    async def _bearer(self, text: str, scope: Scope) -> Identity:
        """Whose token it is: one of ours, or one of the provider's, which alone has dots in it."""
        assert self.access.tokens is not None
        loop, sign_in = asyncio.get_running_loop(), self.access.sign_in
        try:
            if sign_in is not None and text.count(".") == 2:
                caller = Caller(address_of(scope), scope["state"]["request_id"])
                key = await sign_in.provider.key_of(text)
                return await loop.run_in_executor(self.threads, sign_in.identify, text, key, caller)
        except SignInRefused as error:
            if error.why == "token":
                raise _unknown(str(error), 'Bearer error="invalid_token"') from None
            raise ProblemError(403, str(error), remedy="ask an admin") from None
        except ProviderUnreachable as error:
            remedy = "try again in a minute, or send a token of this service"
            raise ProblemError(503, str(error), remedy=remedy, headers={"Retry-After": "10"}) from None
        identity = await loop.run_in_executor(self.threads, self.access.tokens.identify, text)
        if identity is None:
            raise _unknown("the token is not known here, or has ended", 'Bearer error="invalid_token"')
        return identity

    async def _session(self, cookie: str) -> Identity:
        assert self.access.tokens is not None
        identify = functools.partial(self.access.tokens.identify, cookie, is_cookie=True)
        identity = await asyncio.get_running_loop().run_in_executor(self.threads, identify)
        if identity is None:
            raise _unknown("the session has ended; sign in again", "Bearer")
        return identity


def hardened(send: Send) -> Send:
    """The same answers, which a browser shows as what they say they are, and runs nothing of."""

    async def hardened_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *AS_DATA]}
        await send(message)

    return hardened_send


def refuse_foreign(headers: Headers) -> None:
    """Raise ProblemError for what a page from elsewhere has a browser of this machine's send.

    A name that is pointed at the loopback address (DNS rebinding) shows in Host, any other page in Origin.
    """
    host = headers.get("host", "")
    if not _is_loopback(host):
        detail = f"without a token this server answers only to the names of this machine, not to {host[:100]!r}"
        raise ProblemError(
            403, detail, "/header/Host", remedy="use http://127.0.0.1, or `millrace serve --require-token`"
        )
    origin = headers.get("origin")
    foreign = origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower())
    if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        detail = f"a page from {(origin or 'elsewhere')[:100]!r} may not use this server without a token"
        raise ProblemError(403, detail, "/header/Origin", remedy="use this server's own page, or send a token")


def bounded(receive: Receive, most_bytes: int) -> Receive:
    """The same body, but not for ever and not without end. It is read as far as the bound, never further."""
    taken, is_whole = 0, False

    async def bounded_receive() -> Message:
        nonlocal taken, is_whole
        if is_whole:  # only the end of the connection is still to come
            return await receive()
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {BODY_WITHIN_S:g} s; send it again") from None
        taken += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if taken > most_bytes:
            raise HTTPException(413, f"the body has more than {most_bytes} bytes; send less")
        return message

    return bounded_receive


def _requester(identity: Identity, scope: Scope) -> Requester:
    """With the address that the server told: the client's, or what a proxy on this machine says of it."""
    return Requester(**dict(identity), address=address_of(scope), request_id=scope["state"]["request_id"])


def address_of(scope: Scope) -> str:
    """The client's, as far as it is kept."""
    return str((scope.get("client") or ("",))[0])[:ADDRESS_CHARACTERS]


def _is_data(path: str) -> bool:
    return path.startswith("/v1/")


@functools.lru_cache(maxsize=64)
def _is_loopback(host: str) -> bool:
    match = HOST.match(host)
    if match is None:
        return False
    name = match["name"].strip("[]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _unknown(detail: str, challenge: str) -> ProblemError:
    remedy = "send `Authorization: Bearer TOKEN`; whoever runs the server makes one with `millrace token create`"
    return ProblemError(401, detail, "/header/Authorization", remedy=remedy, headers={"WWW-Authenticate": challenge})
