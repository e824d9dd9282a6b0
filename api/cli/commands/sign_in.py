"""The command line's part about who one is: in, out, and which of them."""

from typing import Annotated

import typer

from api.cli.context import CliContext
from api.cli.options import Output, OutputOption, ServerOption


def add_sign_in(app: typer.Typer, context: CliContext) -> None:
    """All of them."""

    @app.command()
    def login(
        *,
        token: Annotated[
            bool, typer.Option("--token", help="Read a token from standard input instead, and keep it.")
        ] = False,
        browser: Annotated[
            bool, typer.Option("--browser/--no-browser", help="Open the browser, or only print where to go.")
        ] = True,
        port: Annotated[
            int | None, typer.Option(min=1024, max=65535, help="Where the browser finds this command. [any]")
        ] = None,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Sign in to a service in the browser, through its sign-in provider. Later commands, and the Python client, use
        it where no other token is given."""
        from api.cli.actions.team.sign_in import keep_token, sign_in

        if token:
            keep_token(context, server, output is Output.json)
        else:
            sign_in(context, server, port, browser, output is Output.json)

    @app.command()
    def logout(server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Forget the login at a service. One that `millrace login` has made in the browser ends there, too."""
        from api.cli.actions.team.sign_in import sign_out

        sign_out(context, server, output is Output.json)

    @app.command()
    def me(
        *,
        end_token: Annotated[bool, typer.Option("--end-token", help="End the token that is shown, for good.")] = False,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Print who the service takes you for, your role, and until when."""
        from api.cli.actions.team.sign_in import print_me
        from api.cli.connection import connected

        with connected(context, server) as client:
            print_me(client, end_token, output is Output.json)
