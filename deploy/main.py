"""The composition root: puts service, API and command line together. `main` is the console's entry point."""

import contextlib
import fcntl
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from api.cli import BAD_INPUT, Doors, ServeOptions, build
from deploy.settings import Settings

if TYPE_CHECKING:
    from service import ClusterInfo, Resources, Runs


def main() -> None:
    """The command `millrace`."""
    try:
        settings = Settings()
    except ValidationError as error:
        for item in error.errors():
            print(f"MILLRACE_{'_'.join(map(str, item['loc'])).upper()}: {item['msg']}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    build(doors(settings))()


def doors(settings: Settings) -> Doors:
    """What the command line works with."""
    return Doors(
        server=settings.server_url,
        host=settings.host,
        port=settings.port,
        state_dir=settings.state_dir.expanduser(),
        runs_dir=settings.runs_dir.expanduser(),
        serve=serve,
        stop_cluster=stop_cluster,
        runs=ray_runs,
        cluster=ray_cluster,
    )


def ray_runs() -> "Runs":
    """What runs jobs on Ray."""
    import trainers

    return trainers


@contextlib.contextmanager
def ray_cluster(address: str | None, needs: "Resources", num_cpus: int | None) -> "Iterator[ClusterInfo]":
    """The cluster at an address, or an embedded one with logical CPUs enough for one run."""
    from service import attach, detach, embedded

    if address is None:
        with embedded(num_cpus, at_least=math.ceil(needs.cpus)) as info:
            yield info
        return
    info = attach(address)
    try:
        yield info
    finally:
        detach()


def serve(options: ServeOptions) -> None:
    """Serve until told to stop. Raises CannotServe for an address or a folder that cannot be used."""
    from api import Server, Streams, bind, create_app
    from service import JobManager, Store, attach, detach, start_head

    listening = bind(options.host, options.port)
    with contextlib.closing(listening), _alone(options.state_dir):
        address = options.address or start_head(options.state_dir, options.num_cpus).address
        cluster = attach(address)
        store = Store.open(f"sqlite:///{options.state_dir / 'millrace.db'}")
        try:
            manager = JobManager(store, ray_runs(), options.state_dir / "runs", Path.cwd())
            streams = Streams()
            server = Server(create_app(manager, cluster, streams), streams)
            host, port = listening.getsockname()[:2]
            print(f"Millrace serves on http://{f'[{host}]' if ':' in host else host}:{port}  (API: /docs)")
            print(f"Ray dashboard: {cluster.dashboard_url}  (if it asks for a token: `ray get-auth-token`)", flush=True)
            server.run(sockets=[listening])
        finally:
            store.close()
            detach()
    print("Stopped. Ray and its runs go on: `millrace serve` finds them again", end="")
    print("." if options.address else ", `millrace serve --stop-cluster` ends them.", flush=True)


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
