"""The connection of the commands to a service, with its errors as exit statuses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from api.cli.context import BAD_INPUT, FAILED, CliContext
from api.client.calls import url_of
from api.client.client import Client, Refused, Unreachable

CORRECTABLE = frozenset({401, 403, 404, 409, 413, 415, 422, 429})
"""Statuses of errors that the caller can correct."""


def complain(line: str) -> None:
    """Print a line to the error stream."""
    typer.echo(line, err=True)


def client_of(context: CliContext, server: str | None, token: str | None = None) -> Client:
    """A client of the service at a URL, or of ours; our token is shown to ours and to no other, and to each the login
    that is kept for it. token: Another one instead; empty: none."""
    url = url_of(server or context.server)
    ours = context.token if url == url_of(context.server) else ""
    return Client(url, token=(ours or None) if token is None else token)


@contextlib.contextmanager
def connected(
    context: CliContext, server: str | None, subject: str | None = None, token: str | None = None
) -> Iterator[Client]:
    """A client whose errors end the command: with status 2 if the caller can correct them, otherwise with 1.

    subject: The file that is named in front of each error. token: As `client_of` takes it.
    """
    with client_of(context, server, token) as client:
        try:
            yield client
        except Refused as error:
            problem = error.problem
            lines = [item.in_words for item in problem.errors] or [problem.detail]
            for line in lines:
                complain(f"{subject}: {line}" if subject else line)
            if problem.status in (401, 403):
                complain(problem.remedy)
            if problem.status == 401:
                complain("`millrace login` signs you in, and `millrace login --token` takes a token and keeps it")
            raise typer.Exit(BAD_INPUT if problem.status in CORRECTABLE else FAILED) from None
        except Unreachable as error:
            complain(str(error))
            raise typer.Exit(FAILED) from None
