"""torch.nn.parallel.DistributedDataParallel on gloo, in the best of several configurations."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from benchmarks.measurement.contender import Measurement, from_timings
from benchmarks.measurement.processes import free_port, together
from benchmarks.measurement.workload import Timing, Workload, steady


@dataclass(frozen=True)
class DdpConfig:
    """What may make it faster."""

    fused: bool = True
    """One pass for the optimiser: `torch.optim.SGD(fused=True)`; otherwise torch's default for the CPU."""
    bucket_mb: int = 25
    """Gradients leave in buckets of this size; torch's default is 25."""
    static_graph: bool = False

    @property
    def title(self) -> str:
        optimizer = "fused optimiser" if self.fused else "default optimiser"
        return f"{optimizer}, buckets of {self.bucket_mb} MB" + (", static graph" if self.static_graph else "")


CANDIDATES = (
    DdpConfig(fused=False),
    DdpConfig(),
    DdpConfig(bucket_mb=1),
    DdpConfig(bucket_mb=5),
    DdpConfig(static_graph=True),
)


def measure(work: Workload, config: DdpConfig) -> Measurement:
    """One process a worker, as `torchrun` would start them."""
    address = f"127.0.0.1:{free_port()}"
    return from_timings(together(train, [(work, config, rank, address) for rank in range(work.workers)]), work)


def train(work: Workload, config: DdpConfig, rank: int, address: str) -> Timing:
    """One process. address: where the first of them listens."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://{address}", timedelta(seconds=60), rank=rank, world_size=work.workers)
    try:
        options: dict[str, Any] = {"bucket_cap_mb": config.bucket_mb, "static_graph": config.static_graph}
        model = DistributedDataParallel(work.build_model(), gradient_as_bucket_view=True, **options)
        batches = work.minibatches(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum, fused=config.fused or None)

        def step() -> None:
            batch = next(batches)
            optimizer.zero_grad()
            work.loss(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        def agree(steps: int) -> int:
            agreed = torch.tensor([steps])
            dist.broadcast(agreed, src=0)
            return int(agreed)

        return steady(step, work, agree)
    finally:
        dist.destroy_process_group()
