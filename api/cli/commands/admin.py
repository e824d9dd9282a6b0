"""The command line's part about running a service: tokens, webhooks, the doctor."""

from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from api.cli.context import CliContext
from api.cli.options import AddressOption, Output, OutputOption, RoleName, ServerOption

StateDir = Annotated[Path, typer.Option(help="Where the service keeps its state.")]
MOMENTS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"]


def add_admin(app: typer.Typer, context: CliContext) -> None:
    """All of them."""
    _add_tokens(app, context)
    _add_webhooks(app, context)
    _add_audit(app, context)
    _add_doctor(app, context)


def _add_tokens(app: typer.Typer, context: CliContext) -> None:
    group = typer.Typer(help="Who may come in: make, list and revoke tokens of the service on this machine.")
    app.add_typer(group, name="token", no_args_is_help=True)

    @group.command()
    def create(
        user: Annotated[str, typer.Argument(metavar="USER", help="Whose it is.", show_default=False)],
        role: Annotated[RoleName, typer.Option(help="viewer reads, user submits too, admin may everything.")],
        *,
        days: Annotated[float | None, typer.Option(min=0, help="How long it works. [for ever]")] = None,
        state_dir: StateDir = context.state_dir,
        output: OutputOption = Output.text,
    ) -> None:
        """Make a token, and print it this once: the service keeps only its hash."""
        from api.cli.actions.admin import create_token

        create_token(context, state_dir, user, role.value, days, output is Output.json)

    @group.command("list")
    def list_tokens(state_dir: StateDir = context.state_dir, output: OutputOption = Output.text) -> None:
        """List tokens and sessions, newest first; their secrets cannot be shown again."""
        from api.cli.actions.admin import print_tokens

        print_tokens(context, state_dir, output is Output.json)

    @group.command()
    def revoke(
        token: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id.", show_default=False)],
        state_dir: StateDir = context.state_dir,
        output: OutputOption = Output.text,
    ) -> None:
        """End a token, or a browser's session, at once, also for a service that runs."""
        from api.cli.actions.admin import revoke_token

        revoke_token(context, state_dir, token, output is Output.json)

    @group.command()
    def release(
        user: Annotated[str, typer.Argument(metavar="USER", help="Whose name it is.", show_default=False)],
        state_dir: StateDir = context.state_dir,
        output: OutputOption = Output.text,
    ) -> None:
        """Let the next account of the sign-in provider that comes with a name have it."""
        from api.cli.actions.admin import release_name

        release_name(context, state_dir, user, output is Output.json)


def _add_webhooks(app: typer.Typer, context: CliContext) -> None:
    WebhookId = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its id.", show_default=False)]
    group = typer.Typer(help="URLs that are sent a message when jobs change their state.")
    app.add_typer(group, name="webhook", no_args_is_help=True)

    @group.command()
    def create(
        url: Annotated[str, typer.Argument(metavar="URL", help="Where to.", show_default=False)],
        *,
        state: Annotated[list[str] | None, typer.Option(help="Tell of this state; may be repeated. [all]")] = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Send messages to a URL, and print the secret that they are signed with, this once."""
        from api.cli.actions.admin import create_webhook
        from api.cli.connection import connected

        with connected(context, server) as client:
            create_webhook(client, url, state or [], output is Output.json)

    @group.command("list")
    def list_webhooks(server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """List webhooks, newest first."""
        from api.cli.actions.admin import print_webhooks
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_webhooks(client, output is Output.json)

    @group.command()
    def show(webhook: WebhookId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Show a webhook's last messages, and what went wrong with them."""
        from api.cli.actions.admin import print_webhook
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_webhook(client, webhook, output is Output.json)

    @group.command()
    def delete(webhook: WebhookId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Send a URL no more messages."""
        from api.cli.actions.admin import delete_webhook
        from api.cli.connection import connected

        with connected(context, server) as client:
            delete_webhook(client, webhook, output is Output.json)


def _add_audit(app: typer.Typer, context: CliContext) -> None:
    Moment = Annotated[datetime | None, typer.Option(formats=MOMENTS, show_default=False)]

    @app.command()
    def audit(
        target: Annotated[
            str | None, typer.Argument(metavar="[ID]", help="Of a job, sweep, webhook or token. [all]")
        ] = None,
        *,
        user: Annotated[str | None, typer.Option(help="What this user did.", show_default=False)] = None,
        action: Annotated[list[str] | None, typer.Option(help="As `job.cancel`; may be repeated. [all]")] = None,
        since: Moment = None,
        until: Moment = None,
        limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Show who changed what, when and from where, newest first. For admins."""
        from api.cli.actions.admin import print_audit
        from api.cli.connection import connected

        times = [None if moment is None else moment.timestamp() for moment in (since, until)]
        with connected(context, server) as client:
            found = client.audit(user, tuple(action or ()), target, *times)
            print_audit(islice(found, limit), output is Output.json)


def _add_doctor(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def doctor(
        *,
        quick: Annotated[bool, typer.Option("--quick", help="Leave Ray alone, which takes some seconds.")] = False,
        state_dir: StateDir = context.state_dir,
        storage: Annotated[
            str, typer.Option(metavar="URL", help="Where copies of runs are kept, as `serve` was told.")
        ] = context.storage,
        address: AddressOption = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Check Ray, the service, the store, storage, GPUs and data, and say how to mend each."""
        from api.cli.actions.doctor import findings, print_findings

        installed = replace(context, state_dir=state_dir.absolute(), storage=storage)
        found = list(findings(installed, server, address, quick))
        raise typer.Exit(print_findings(found, output is Output.json))
