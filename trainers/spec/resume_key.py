"""What must not change when a run resumes from a checkpoint within an epoch."""

from trainers.data.config import DataSpec
from trainers.data.names import RECORDS, SAVED, TABLES
from trainers.spec import TrainSpec

DIVIDES = {
    "text": ("tokens", "tokenizer", "context", "test"),
    **dict.fromkeys((*TABLES, *SAVED), ("test",)),
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
        "data.validation": _held_out(spec.data),
        **{f"data.{name}": getattr(spec.data, name) for name in DIVIDES.get(spec.data.kind, ())},
        "batch.per_worker": spec.batch.per_worker,
        "elastic.mode": spec.elastic.mode,
        "workers.virtual": spec.workers.num_virtual if traits.is_synchronous and not spec.scales_batch else None,
        **{f"algorithm.{name}": value for name, value in spec.algorithm.resume_options().items()},
        "seed": spec.seed,
    }


def _held_out(data: DataSpec) -> float | str | None:
    """What is held out of the training examples."""
    if data.name in RECORDS:
        return data.held_out or data.validation
    if data.kind not in SAVED:
        return data.carved or None
    is_as_before = isinstance(data.validation, float) and not data.carve
    return f"{data.validation:g}, but of data without a test set" if is_as_before else data.validation
