"""The actor that holds a second copy of a shard, and serves in its place should its node be lost."""

import secrets
from dataclasses import replace
from socket import create_server
from typing import TYPE_CHECKING, Any

from trainers.runtime.exchanges import COPY
from trainers.runtime.messages import CopyPlace, Exchange, Prepared
from trainers.runtime.shard import ShardActor

if TYPE_CHECKING:
    from trainers.transport.shard_copy import ShardCopy


class CopyActor(ShardActor):
    """The shard of an index, in files of its own, filled by the one that serves."""

    copy: "ShardCopy | None" = None

    def hold(self, exchange: Exchange, prepared: Prepared) -> CopyPlace:
        """Make room, and listen to the shard that serves; both arguments are that one's.

        Returns:
            Where it listens. The folder is what it must `recover` from, and whoever comes after it on its node.
        """
        from trainers.transport.rendezvous import own_host, reach_rendezvous
        from trainers.transport.shard_copy import ShardCopy
        from trainers.transport.store_messages import JOIN_TIMEOUT_S

        place = self.prepare()
        folder = f"{exchange.folder}{COPY}{self.name.rpartition('/')[2]}"
        pieces = self._pieces(self._plan(replace(exchange, folder=folder)), prepared, is_shared=False)
        assert exchange.address is not None
        rendezvous = reach_rendezvous(exchange.address, JOIN_TIMEOUT_S)
        host = own_host(rendezvous)
        rendezvous.close()
        listener, token = create_server((host, 0)), secrets.randbits(62)
        self.copy = ShardCopy(listener, token, pieces)
        return CopyPlace(place, folder, (host, listener.getsockname()[1]), token)

    def follow(self) -> None:
        """Write down what the shard that serves says, until `recover`."""
        assert self.copy is not None
        self.copy.follow()

    def recover(self, exchange: Exchange, prepared: Prepared, last: dict[str, Any] | None = None) -> int:
        """Take no more from the shard that served, and serve in its place."""
        if self.copy is not None:
            self.copy.end()
            self.copy = None
        return super().recover(exchange, prepared, last)
