"""What `millrace login`, `logout` and `me` do, once their arguments are read."""

import contextlib
import getpass
import json
import sys
import webbrowser
from ipaddress import ip_address
from urllib.parse import urlsplit

import typer

from api.cli.actions.team.loopback import Loopback
from api.cli.connection import client_of, complain, connected
from api.cli.context import BAD_INPUT, FAILED, CliContext
from api.cli.display import day
from api.client.call import Refused, Unreachable
from api.client.calls import url_of
from api.client.client import Client
from api.client.logins import Login, Logins

WITHIN_S = 600.0
"""As long as the service lets a sign-in take."""


def sign_in(context: CliContext, server: str | None, port: int | None, with_browser: bool, as_json: bool) -> None:
    """Through the provider of the service, in a browser."""
    url = url_of(server or context.server)
    with connected(context, url, token="") as client:
        ways = client.ways()
        if ways.url is None:
            complain(f"{url} has no sign-in provider: `millrace login --token` takes a token that its admin has made")
            raise typer.Exit(BAD_INPUT)
        for address in (url, ways.url):
            _refuse_open(address)
        try:
            loopback = Loopback(port or 0)
        except OSError as error:
            complain(f"cannot listen on port {port}: {error.strerror}; choose another --port")
            raise typer.Exit(BAD_INPUT) from None
        with contextlib.closing(loopback):
            code = _brought(loopback, ways.url, with_browser)
        if not code:
            why = "".join(filter(str.isprintable, loopback.error))
            complain(f"nobody has signed in: {why or 'ten minutes have passed; begin anew'}")
            raise typer.Exit(FAILED)
        made = client.login(code, loopback.verifier)
    login = Login(server=url, token=made["token"], user=made["user"], expires=made["expires"], is_ours=True)
    _keep(login, made["role"], as_json)


def keep_token(context: CliContext, server: str | None, as_json: bool) -> None:
    """Keep a token that somebody has made, once the service has taken it."""
    url = url_of(server or context.server)
    text = getpass.getpass("Token: ").strip() if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        complain("there is no token on standard input; `millrace login --token < FILE` reads one from a file")
        raise typer.Exit(BAD_INPUT)
    with connected(context, url, token=text) as client:
        me = client.who()
    _keep(Login(server=url, token=text, user=me.user, expires=me.expires, is_ours=False), me.role, as_json)


def sign_out(context: CliContext, server: str | None, as_json: bool) -> None:
    """Forget a login, and end it where a sign-in has made it."""
    url = url_of(server or context.server)
    logins = Logins()
    login = logins.find(url)
    if login is not None and login.is_ours:
        try:
            with client_of(context, url, login.token) as client:
                client.sign_out()
        except Refused:  # it has ended
            pass
        except Unreachable as error:
            complain(f"{error}; the login goes on there until {day(login.expires or 0)}")
    logins.forget(url)
    told = "You were not signed in" if login is None else f"{login.user} is signed out"
    typer.echo(json.dumps({"server": url, "ended": login is not None}) if as_json else f"{told} at {url}.")
    if login is not None and not login.is_ours:
        complain("The token itself goes on: `millrace me --end-token` ends one.")


def print_me(client: Client, end_token: bool, as_json: bool) -> None:
    """Print who we are to the service, and end our token if that is wanted."""
    identity = client.who()
    if end_token:
        client.sign_out()
    if as_json:
        told = {**identity.model_dump(mode="json"), "expires": identity.expires, "ended": end_token}
        typer.echo(json.dumps(told))
        return
    other = "without a token" if identity.expires is None else "with a token of the sign-in provider"
    token = f"with the token {identity.token}" if identity.token else other
    ends = "" if identity.expires is None else f", until {day(identity.expires)}"
    typer.echo(f"{identity.user}, {identity.role}, {token}{', which has ended' if end_token else ends}")


def _brought(loopback: Loopback, begin: str, with_browser: bool) -> str:
    """Send somebody to the provider, and wait for the code that their browser brings; empty: none has come."""
    address, port = loopback.address(begin), loopback.terminal.port
    complain(f"Sign in at\n  {address}\nThe page shows the code {loopback.terminal.mark}. Ctrl-C gives up.")
    if with_browser:
        webbrowser.open(address)
    else:
        complain(f"Is the browser on another machine? Run there: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE")
    return loopback.wait(WITHIN_S)


def _keep(login: Login, role: str, as_json: bool) -> None:
    try:
        path = Logins().keep(login)
    except OSError as error:
        complain(f"cannot keep the login in {error.filename}: {error.strerror}")
        raise typer.Exit(FAILED) from None
    told = {"server": login.server, "user": login.user, "role": role, "expires": login.expires, "file": str(path)}
    ends = "" if login.expires is None else f", until {day(login.expires)}"
    said = f"Signed in at {login.server} as {login.user}, {role}{ends}. It is kept in {path}."
    typer.echo(json.dumps(told) if as_json else said)


def _refuse_open(url: str) -> None:
    """End the command if what goes to an address could be read on the way."""
    parts = urlsplit(url)
    with contextlib.suppress(ValueError):
        if parts.scheme == "https" or parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback:
            return
    complain(f"{url} is no https:// address: a login could be read on the way. Give the other one with --server")
    raise typer.Exit(BAD_INPUT)
