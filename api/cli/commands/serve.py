"""`millrace serve`."""

from pathlib import Path
from typing import Annotated

import typer

from api.cli.context import BAD_INPUT, FAILED, CliContext, ServeOptions
from api.cli.options import AddressOption, CpusOption, RoleName


def add_serve(app: typer.Typer, context: CliContext) -> None:
    """Add it."""
    code_role_by_default = RoleName(context.code_role)

    @app.command()
    def serve(
        *,
        host: Annotated[str, typer.Option(help="An address; all but loopback ones demand tokens.")] = context.host,
        port: Annotated[int, typer.Option(min=0, max=65535)] = context.port,
        state_dir: Annotated[Path, typer.Option(help="Where jobs, logs and models are kept.")] = context.state_dir,
        address: AddressOption = None,
        num_cpus: CpusOption = None,
        require_token: Annotated[
            bool, typer.Option("--require-token", help="Demand tokens on a loopback address too, as behind a proxy.")
        ] = False,
        code_role: Annotated[
            RoleName, typer.Option(help="The least role whose jobs may run code of their own.")
        ] = code_role_by_default,
        webhook_allow: Annotated[
            list[str] | None,
            typer.Option(metavar="NETWORK", help="A private network that webhooks may lead to; may be repeated."),
        ] = None,
        storage: Annotated[
            str,
            typer.Option(metavar="URL", help="Where copies of runs are kept: file:///folder, s3://bucket/folder."),
        ] = context.storage,
        stop_cluster: Annotated[
            bool, typer.Option("--stop-cluster", help="End the Ray that an earlier call started, with its runs.")
        ] = False,
    ) -> None:
        """Take jobs by REST. Stopping the server leaves its runs going; the next one finds them again."""
        from api.http.server import CannotServe
        from service import MillraceError

        try:
            if stop_cluster:
                context.stop_cluster(state_dir.absolute())
            else:
                allowed = tuple(webhook_allow or context.webhook_allow)
                rules = (require_token, code_role.value, allowed, storage)
                context.serve(ServeOptions(host, port, state_dir.absolute(), address, num_cpus, *rules))
        except CannotServe as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(BAD_INPUT) from None
        except MillraceError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(FAILED) from None
