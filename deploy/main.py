"""The composition root: puts service, API and command line together. `main` is the console's entry point."""

import contextlib
import fcntl
import math
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import TYPE_CHECKING

from pydantic import ValidationError

from api.cli.app import build
from api.cli.context import BAD_INPUT, CliContext, ServeOptions
from deploy.restart import HeadWatch
from deploy.settings import Settings, config_file, guide_dir
from deploy.sign_in import oidc_config, way_in
from deploy.tokens import database, has_token, no_token, opened_tokens
from deploy.watchdog import ends_if_it_stands_still

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from typer import Typer

    from service import ClusterInfo, Mirror, Quotas, Resources, Runs, Store, Tracking


def main() -> None:
    """The command `millrace`."""
    try:
        settings = Settings()
    except ValidationError as error:
        for item in error.errors():
            name = "_".join(map(str, item["loc"]))
            where = f" (or `{name}` in {config_file()})" if config_file().exists() else ""
            print(f"MILLRACE_{name.upper()}: {item['msg']}{where}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except TOMLDecodeError as error:
        print(f"{config_file()}: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    app = build(cli_context(settings))
    keep_named(app, sys.argv[1:2])
    app()


def keep_named(app: "Typer", words: list[str]) -> None:
    """Leave only the command that is named, if one is: to prepare all of them takes a tenth of `millrace list`."""
    from typer.main import get_command_name

    commands = [
        c for c in app.registered_commands if words == [c.name or get_command_name(getattr(c.callback, "__name__", ""))]
    ]
    groups = [group for group in app.registered_groups if [group.name] == words]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups


def cli_context(settings: Settings) -> CliContext:
    """What the command line works with."""
    return CliContext(
        server=settings.server_url,
        token=settings.token.get_secret_value(),
        code_role=settings.code_role,
        webhook_allow=tuple(map(str, settings.webhook_allow)),
        database=settings.database,
        storage=settings.storage,
        data_root=settings.data_root.expanduser(),
        config=config_file(),
        tokens=partial(opened_tokens, settings),
        host=settings.host,
        port=settings.port,
        state_dir=settings.state_dir.expanduser(),
        runs_dir=settings.runs_dir.expanduser(),
        serve=partial(serve, settings),
        stop_cluster=stop_cluster,
        runs=ray_runs,
        cluster=ray_cluster,
        grows_to=tuple(settings.grows_to),
    )


def ray_runs() -> "Runs":
    """What runs jobs on Ray."""
    import trainers

    return trainers


@contextlib.contextmanager
def ray_cluster(
    address: str | None, needs: "Resources", num_cpus: int | None, dashboard: bool = True
) -> "Iterator[ClusterInfo]":
    """The cluster at an address, or an embedded one with logical CPUs enough for one run."""
    from service import attach, detach, embedded

    if address is None:
        with embedded(num_cpus, math.ceil(needs.cpus), dashboard) as info:
            yield info
        return
    info = attach(address)
    try:
        yield info
    finally:
        detach()


def serve(settings: Settings, options: ServeOptions) -> None:
    """Serve until it is asked to stop. Raises CannotServe for what cannot be used: an address, a folder, a storage."""
    from api import Access, AppConfig, Server, Streams, bind, create_app, is_exposed
    from service import (
        Growth,
        ManagerConfig,
        Role,
        Sender,
        SignIn,
        SweepManager,
        Tokens,
        Webhooks,
        attach,
        build_manager,
        detach,
        start_head,
    )

    provider = oidc_config(settings)
    demands = is_exposed(options.host) or options.require_token or provider is not None
    if demands and provider is None and not has_token(settings, options.state_dir):
        raise no_token(options)
    allowed = allowed_networks(options)
    mirror = open_mirror(options)
    listening = bind(options.host, options.port, is_guarded=demands)
    with contextlib.closing(listening), _alone(options.state_dir), _trackers(settings, options.state_dir) as trackers:
        address = options.address or start_head(options.state_dir, options.num_cpus).address
        with ends_if_it_stands_still():
            cluster = attach(address, json_logs=settings.log_format == "json")
        store = open_store(settings, options.state_dir)
        try:
            growth = Growth(tuple(settings.grows_to) if options.address else ())  # a head of our own does not grow
            config = ManagerConfig(
                options.state_dir / "runs", Path.cwd(), quotas=quotas(settings), growth=growth,
                audit_entries=settings.audit_entries,
            )  # fmt: skip
            manager = build_manager(store, ray_runs(), config, mirror, trackers)
            sweeps = SweepManager(manager, options.state_dir / "sweeps", Path.cwd())
            streams = Streams()
            sender = Sender(Webhooks(store.engine, sweeps.folder), allowed)
            tokens = Tokens(store.engine)
            sign_in = None if provider is None else SignIn(provider, tokens)
            access = Access(tokens, demands, Role(options.code_role), sign_in)
            app = AppConfig(streams, access, guide_dir(settings))
            server = Server(create_app(manager, sweeps, cluster, app, sender), streams)
            host, port = listening.getsockname()[:2]
            if not options.address:
                HeadWatch(options.state_dir, port, lambda: server.should_exit).start()
            print(f"Millrace serves on http://{f'[{host}]' if ':' in host else host}:{port}  (API: /docs)")
            if demands:
                print("Every caller shows a token: `millrace token create` makes one" + way_in(provider))
            print(f"Ray dashboard: {cluster.dashboard_url}  (if it asks for a token: `ray get-auth-token`)", flush=True)
            server.run(sockets=[listening])
        finally:
            store.close()
            detach()
    print("Stopped. Ray and its runs go on: `millrace serve` finds them again", end="")
    print("." if options.address else f", `{stop_command(settings, options.state_dir)}` ends them.", flush=True)


@contextlib.contextmanager
def _trackers(settings: Settings, state_dir: Path) -> "Iterator[list[Tracking]]":
    """What mirrors the jobs in MLflow, Weights & Biases and Aim, where the settings name them. Raises CannotServe."""
    from api import CannotServe
    from service import Tracking

    found: list[Tracking] = []
    if settings.mlflow_uri:
        found.append(Tracking("mlflow", settings.mlflow_uri, settings.mlflow_experiment))
    if settings.wandb_project:
        found.append(Tracking("wandb", settings.wandb_project, settings.wandb_mode, str(state_dir / "wandb")))
    if settings.aim_repo:
        found.append(Tracking("aim", settings.aim_repo, settings.aim_experiment, str(state_dir / "aim")))
    for one in found:
        if not one.is_installed:
            raise CannotServe(
                f"a setting MILLRACE_{one.library.upper()}_* names a tracker that is not installed: "
                f"pip install 'millrace[{one.library}]'"
            )
    with contextlib.ExitStack() as stack:
        for one in found:
            one.start()
            stack.callback(one.close)
        yield found


def allowed_networks(options: ServeOptions) -> "tuple[IPv4Network | IPv6Network, ...]":
    """The private networks that webhooks may lead to. Raises CannotServe."""
    from api import CannotServe
    from service import networks

    try:
        return networks(options.webhook_allow)
    except ValueError as error:
        raise CannotServe(f"--webhook-allow: {error}; a network looks like 10.1.0.0/16") from None


def open_mirror(options: ServeOptions) -> "Mirror | None":
    """What keeps copies of runs, if there is a storage for them. Raises CannotServe."""
    from api import CannotServe
    from service import Mirror, Storage, StorageRefused, StorageUnreachable

    if not options.storage:
        return None
    try:
        return Mirror(Storage.open(options.storage), options.state_dir / "runs")
    except (StorageRefused, StorageUnreachable) as error:
        raise CannotServe(f"--storage: {error}") from None


def open_store(settings: Settings, state_dir: Path) -> "Store":
    """The database, for this service alone. Raises CannotServe."""
    from api import CannotServe
    from service import DatabaseRefused, Store

    try:
        store = Store.open(database(settings, state_dir))
        store.hold()
    except DatabaseRefused as error:
        raise CannotServe(str(error)) from None
    return store


def quotas(settings: Settings) -> "Quotas":
    """What one user may have, and how long ended jobs are kept."""
    from service import Quotas

    return Quotas(
        running_jobs=settings.max_running_jobs,
        cpus=settings.max_cpus,
        gpus=settings.max_gpus,
        waiting_jobs=settings.max_waiting_jobs,
        keep_s=settings.keep_s,
    )


def stop_command(settings: Settings, state_dir: Path) -> str:
    """What ends the Ray head of a state directory."""
    is_usual = state_dir == settings.state_dir.expanduser()
    return "millrace serve --stop-cluster" + ("" if is_usual else f" --state-dir {shlex.quote(str(state_dir))}")


def stop_cluster(state_dir: Path) -> None:
    """End the Ray head that an earlier `serve` started."""
    from service import stop_head

    with _alone(state_dir):
        print("Ray has ended, and the runs on it." if stop_head(state_dir) else "No Ray of ours is running.")


@contextlib.contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """One server a state directory."""
    from api import CannotServe

    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (state_dir / "serve.lock").open("w")
    except OSError as error:
        raise CannotServe(f"cannot use {state_dir}: {error.strerror}; choose another --state-dir") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotServe(f"another server uses {state_dir}; stop it, or choose another --state-dir") from None
        yield


if __name__ == "__main__":
    main()
