"""The shard actor: serves a slice of the parameters on one thread."""

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from trainers.runtime.member import Member, limit_threads, node_folder
from trainers.runtime.messages import Exchange, Place, Prepared
from trainers.spec import TrainSpec

if TYPE_CHECKING:
    from trainers.store.shard import Shard
    from trainers.transport.process_group_store import ProcessGroupShardServer
    from trainers.transport.shared_store import ShardServer

GROUPS = {"serve": 1, "control": 4, "snapshot": 2}


class ShardActor(Member):
    """One shard of the parameter server."""

    def __init__(self, name: str, job_id: str, spec: TrainSpec, index: int) -> None:
        super().__init__(name, job_id)
        self.spec = spec
        self.index = index
        self.server: ShardServer | ProcessGroupShardServer

    def prepare(self) -> Place:
        """Import what takes long, while the workers load their data."""
        limit_threads(1)
        import torch

        torch.set_num_threads(1)
        return self.place()

    def open(self, exchange: Exchange, prepared: Prepared, start: dict[str, np.ndarray]) -> None:
        """Take the first version of the slice, and listen.

        Args:
            exchange: How workers reach this shard; its `size` is how many there are.
            prepared: The layout.
            start: Vectors (P,) as `Worker.initial` gives them.
        """
        from trainers.store.identity import IdentitySet
        from trainers.transport.shared_store import ShardServer, mapped_ring

        cut = slice(*prepared.shards[self.index])
        first = {name: _copy(vector[cut]) for name, vector in start.items()}
        params, state = first.pop("params"), first
        if exchange.transport == "shared_memory":
            folder = node_folder(self.job_id) / exchange.folder
            folder.mkdir(parents=True, exist_ok=True)
            ring = mapped_ring(folder, exchange.size, prepared.numel, cut, params)
        else:
            ring = [params.clone() for _ in range(exchange.size + 2)]
        shard = self._shard(prepared, cut, ring, state)
        applied: Any = prepared.position["applied"]
        if self.index < len(applied):
            shard.applied = IdentitySet.from_json([list(row) for row in applied[self.index]])
        if exchange.transport == "shared_memory":
            self.server = ShardServer(folder, self.index, cut, prepared.numel, shard)
        else:
            self.server = self._process_group_server(exchange, cut, shard)

    def serve(self) -> None:
        """Answer workers until `close`."""
        self.server.serve()

    def snapshot(self, version: int) -> dict[str, Any]:
        """A copy of the slice with all that belongs to it, as soon as `version` updates have been made."""
        taken: dict[str, Any] = {}
        ready = threading.Event()

        def take(shard: "Shard") -> None:
            taken.update(
                start=self.server.span.start,
                params=shard.params.numpy().copy(),
                state={name: vector.numpy().copy() for name, vector in shard.state.items()},
                applied=tuple(tuple(row) for row in shard.applied.to_json()),
                examples=shard.examples,
                learning_rate=shard.learning_rate,
            )
            ready.set()

        self.server.at_version(version, take)
        ready.wait()
        return taken

    def close(self) -> None:
        """End `serve`."""
        self.server.close()

    def _shard(self, prepared: Prepared, cut: slice, ring: list[Any], state: dict[str, Any]) -> "Shard":
        import torch

        from trainers.optim.rules import build_rule
        from trainers.optim.scaling import scaled_decay
        from trainers.optim.schedules import build_schedule
        from trainers.optim.update import SliceUpdate, within
        from trainers.store.shard import Shard, ShardConfig

        spec, rule = self.spec, build_rule(self.spec.optimizer)
        exempt = within([slice(*part) for part in prepared.exempt], cut)
        update = SliceUpdate(rule, scaled_decay(spec), len(ring[0]), torch.device("cpu"), exempt)
        quorum = spec.workers.num_virtual if spec.algorithm.is_synchronous else 0
        config = ShardConfig(update, build_schedule(spec, prepared.num_examples), quorum)
        shard = Shard(config, ring, [state, {name: vector.clone() for name, vector in state.items()}])
        shard.examples = int(prepared.position["examples"])  # type: ignore[call-overload]
        shard.learning_rate = float(prepared.position["learning_rate"])  # type: ignore[arg-type]
        return shard

    def _process_group_server(self, exchange: Exchange, cut: slice, shard: "Shard") -> "ProcessGroupShardServer":
        from trainers.transport.process_group_store import ProcessGroupShardServer

        assert exchange.address is not None
        return ProcessGroupShardServer(
            exchange.address, f"g{exchange.generation}", self.index, exchange.size, cut, shard
        )


def _copy(vector: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(np.array(vector))  # what comes from Ray's store is shared and must not be written
