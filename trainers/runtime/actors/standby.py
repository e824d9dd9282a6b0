"""The actor that holds a second copy of a shard, and serves in its place should its node be lost."""

import secrets
from dataclasses import replace
from socket import create_server
from typing import TYPE_CHECKING

from trainers.parameter_server.endpoints import ProcessGroupStoreEndpoint, StoreEndpoint
from trainers.runtime.actors.shard import ShardActor
from trainers.runtime.messages import StandbyLocation
from trainers.runtime.topology import STANDBY
from trainers.training.messages import RunLayout

if TYPE_CHECKING:
    from trainers.parameter_server.standby import StandbyShard
    from trainers.training.version_parts import VersionPart


class StandbyActor(ShardActor):
    """The shard of an index, in files of its own, filled by the one that serves."""

    copy: "StandbyShard | None" = None

    def hold(self, endpoint: StoreEndpoint, prepared: RunLayout) -> StandbyLocation:
        """Make room, and listen to the shard that serves; both arguments are that one's.

        Returns:
            Where it listens. The folder is what it must `recover` from, and whoever comes after it on its node.
        """
        from trainers.links.rendezvous import own_host, reach_rendezvous
        from trainers.parameter_server.standby import StandbyShard
        from trainers.parameter_server.wire_format import JOIN_TIMEOUT_S

        place = self.prepare()
        folder = f"{endpoint.folder}{STANDBY}{self.name.rpartition('/')[2]}"
        pieces = self._setup(prepared).pieces(self._plan(replace(endpoint, folder=folder)), is_mapped=False)
        assert isinstance(endpoint, ProcessGroupStoreEndpoint)
        rendezvous = reach_rendezvous(endpoint.address, JOIN_TIMEOUT_S)
        host = own_host(rendezvous)
        rendezvous.close()
        listener, token = create_server((host, 0)), secrets.randbits(62)
        self.copy = StandbyShard(listener, token, pieces)
        return StandbyLocation(place, folder, (host, listener.getsockname()[1]), token)

    def follow(self) -> None:
        """Write down what the shard that serves says, until `recover`."""
        assert self.copy is not None
        self.copy.follow()

    def recover(self, endpoint: StoreEndpoint, prepared: RunLayout, last: "VersionPart | None" = None) -> int:
        """Take no more from the shard that served, and serve in its place."""
        if self.copy is not None:
            self.copy.end()
            self.copy = None
        return super().recover(endpoint, prepared, last)
