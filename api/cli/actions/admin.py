"""What the commands about running a service do, once their arguments are read."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli.actions.specs import known_states
from api.cli.connection import complain
from api.cli.context import BAD_INPUT, FAILED, CliContext
from api.cli.display import day, id_column, wide_console
from api.client.client import Client
from service import Accounts, AuditEntry, DatabaseRefused, Role, Token, TokenRefused, Tokens

DAY_S = 86_400.0


@contextlib.contextmanager
def _opened(context: CliContext, state_dir: Path) -> Iterator[Tokens]:
    """The tokens in a state directory; what is wrong becomes an exit status."""
    try:
        with context.tokens(state_dir.absolute()) as tokens:
            yield tokens
    except (DatabaseRefused, TokenRefused) as error:
        complain(str(error))
        raise typer.Exit(BAD_INPUT) from None
    except OSError as error:
        complain(f"cannot use {state_dir}: {error.strerror}; choose another --state-dir")
        raise typer.Exit(FAILED) from None


def create_token(context: CliContext, state_dir: Path, user: str, role: str, days: float | None, as_json: bool) -> None:
    """Make one and print it; nobody can print it again."""
    with _opened(context, state_dir) as tokens:
        token, text = tokens.create(user, Role(role), None if days is None else days * DAY_S)
    if as_json:
        typer.echo(json.dumps({**token.model_dump(mode="json"), "token": text}))
        return
    typer.echo(text)
    complain(f"Token {token.id} of {token.user}, role {token.role}. It is shown this once; keep it as a password.")
    complain(
        f"Use: MILLRACE_TOKEN, or `token` in {context.config or 'the config file'}; `Authorization: Bearer` by REST"
    )


def print_tokens(context: CliContext, state_dir: Path, as_json: bool) -> None:
    """A table of tokens, or one JSON object."""
    with _opened(context, state_dir) as tokens:
        found = tokens.list()
    if as_json:
        typer.echo(json.dumps({"tokens": [token.model_dump(mode="json") for token in found]}))
        return
    ids = id_column("token", (token.id for token in found))
    table = Table(ids, "user", "role", "kind", "created", "works", box=None)
    for token in found:
        cells = (token.id, token.user, token.role, token.kind, day(token.created), _works(token))
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)


def revoke_token(context: CliContext, state_dir: Path, token_id: str, as_json: bool) -> None:
    """End one."""
    with _opened(context, state_dir) as tokens:
        token = tokens.revoke(token_id)
    typer.echo(
        token.model_dump_json() if as_json else f"{token.kind.capitalize()} {token.id} of {token.user} is revoked."
    )


def release_name(context: CliContext, state_dir: Path, user: str, as_json: bool) -> None:
    """Take a name from the account of the sign-in provider that has it."""
    with _opened(context, state_dir) as tokens:
        Accounts(tokens.engine).release(user)
    said = f"The name {user} is free. Sessions that have it go on: `millrace token list` shows them."
    typer.echo(json.dumps({"user": user, "released": True}) if as_json else said)


def create_webhook(client: Client, url: str, states: list[str], as_json: bool) -> None:
    """Make one and print its secret; nobody can print it again."""
    hook, secret = client.add_webhook(url, known_states(states))
    if as_json:
        typer.echo(json.dumps({**hook.model_dump(mode="json"), "secret": secret}))
        return
    typer.echo(secret)
    complain(f"Webhook {hook.id} to {hook.url}. Its messages are signed with this secret, which is shown this once.")


def print_webhooks(client: Client, as_json: bool) -> None:
    """A table of webhooks, or one JSON object."""
    found = list(client.webhooks())
    if as_json:
        typer.echo(json.dumps({"webhooks": [hook.model_dump(mode="json") for hook in found]}))
        return
    table = Table(id_column("webhook", (hook.id for hook in found)), "url", "states", "user", "created", box=None)
    for hook in found:
        cells = (hook.id, hook.url, ", ".join(hook.states) or "all", hook.user, day(hook.created))
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)


def print_webhook(client: Client, webhook_id: str, as_json: bool) -> None:
    """Its last messages, or one JSON object."""
    hook = client.get_webhook(webhook_id)
    if as_json:
        typer.echo(json.dumps(hook))
        return
    ids = id_column("job", (one["job_id"] for one in hook["deliveries"]))
    table = Table(ids, "state", "attempts", "delivered", "error", box=None)
    for one in hook["deliveries"]:
        delivered = "no" if one["delivered"] is None else day(one["delivered"])
        cells = (one["job_id"], one["body"]["data"]["state"], str(one["attempts"]), delivered, one["error"])
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)


def delete_webhook(client: Client, webhook_id: str, as_json: bool) -> None:
    """End one."""
    client.delete_webhook(webhook_id)
    typer.echo(json.dumps({"id": webhook_id, "deleted": True}) if as_json else f"Webhook {webhook_id} is deleted.")


def print_audit(entries: Iterable[AuditEntry], as_json: bool) -> None:
    """A table of what was changed, or one JSON object."""
    if as_json:
        typer.echo(json.dumps({"entries": [entry.model_dump(mode="json") for entry in entries]}))
        return
    entries = list(entries)
    ids = id_column("id", (entry.target or "" for entry in entries))
    table = Table("time", "user", "role", "from", "action", ids, "status", "details", box=None)
    for entry in entries:
        details = ", ".join(f"{name} {value}" for name, value in entry.details.items())
        cells = (day(entry.time), entry.user, entry.role, entry.address, entry.action, entry.target or "")
        table.add_row(*(Text(cell) for cell in (*cells, str(entry.status), details)))
    wide_console().print(table)


def _works(token: Token) -> str:
    if token.revoked is not None:
        return f"no, revoked {day(token.revoked)}"
    if not token.works:
        return f"no, ended {day(token.expires or 0)}"
    return "yes" if token.expires is None else f"until {day(token.expires)}"
