"""The limit: processes that never talk, each with its own plain loop of torch."""

from benchmarks.measurement.contender import Measurement, from_timings
from benchmarks.measurement.processes import together
from benchmarks.measurement.workload import Timing, Workload, steady


def measure(work: Workload) -> Measurement:
    """All workers at once, since they share the machine's memory and caches."""
    return from_timings(together(_train, [(work, rank) for rank in range(work.workers)]), work)


def _train(work: Workload, rank: int) -> Timing:
    import torch

    torch.set_num_threads(1)
    model, batches = work.build_model(), work.minibatches(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum, fused=True)

    def step() -> None:
        batch = next(batches)
        optimizer.zero_grad()
        work.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return steady(step, work)
