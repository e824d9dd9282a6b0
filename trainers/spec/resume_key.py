"""What must not change when a run resumes from a checkpoint within an epoch."""

from trainers.data.names import SAVED, TABLES
from trainers.spec import TrainSpec

DIVIDES = {
    "text": ("tokens", "tokenizer", "context", "validation", "test"),
    **dict.fromkeys((*TABLES, *SAVED), ("validation", "test")),
}
"""What else decides what an example is, by the name of the data."""


def resume_key(spec: TrainSpec) -> dict[str, object]:
    """The fields that decide which examples a step trains; two specs with equal keys divide an epoch alike."""
    traits = spec.algorithm.traits
    kind = "a synchronous algorithm" if traits.is_synchronous else "an asynchronous algorithm"
    if traits.keeps_partitions or traits.holds_examples:
        kind = f"an algorithm that {'keeps' if traits.keeps_partitions else 'holds'} partitions"
    return {
        "algorithm": kind,
        "data.name": spec.data.name,
        "data.limit": spec.data.limit,
        "data.shuffle": spec.data.shuffle,
        **{f"data.{name}": getattr(spec.data, name) for name in DIVIDES.get(spec.data.kind, ())},
        "batch.per_worker": spec.batch.per_worker,
        "elastic.mode": spec.elastic.mode,
        "workers.virtual": spec.workers.num_virtual if traits.is_synchronous and not spec.scales_batch else None,
        **{f"algorithm.{name}": value for name, value in spec.algorithm.resume_options().items()},
        "seed": spec.seed,
    }
