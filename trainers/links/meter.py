"""Counts what a worker moves over one connection to others, and how long it waits for it."""

from threading import Lock

from trainers.latency import LatencyCounts, bucket_of
from trainers.links.names import NUM_BYTES
from trainers.metrics import StepCounters

BYTES = NUM_BYTES["float32"]


class Meter:
    """Counts bytes of vectors that left and reached this worker; on shared memory, what others read of its vectors and
    it of theirs. What a worker hands to itself does not count, nor do the few bytes of barriers, clocks and push
    identities.

    Several threads may count at a time.
    """

    def __init__(self) -> None:
        self.counted = StepCounters()
        """Since `take` was called last."""
        self._lock = Lock()

    def take(self) -> StepCounters:
        """What was counted since the last call."""
        with self._lock:
            taken, self.counted = self.counted, StepCounters()
        return taken

    def count_vectors(self, sent: int, received: int, crossed: int = 0) -> None:
        """Elements that went to other workers and came from them; `crossed`: of those sent, to other nodes."""
        self.count_bytes(BYTES * sent, BYTES * received, BYTES * crossed)

    def count_bytes(self, sent: int, received: int, crossed: int = 0) -> None:
        """Likewise, of vectors of any numbers."""
        with self._lock:
            self.counted.count(sent_bytes=sent, received_bytes=received, crossed_bytes=crossed)

    def count_shuffled(self, num_bytes: int) -> None:
        """Of the bytes sent, those of training examples."""
        with self._lock:
            self.counted.count(shuffled_bytes=num_bytes)

    def count_halos(self, num_bytes: int) -> None:
        """Of the bytes sent, those of rows that neighbours see, and of their gradients."""
        with self._lock:
            self.counted.count(halo_bytes=num_bytes)

    def count_push(self, num_bytes: int) -> None:
        """A push of so many bytes."""
        with self._lock:
            self.counted.count(pushes=1, sent_bytes=num_bytes, pushed_bytes=num_bytes)

    def count_fetch(self, received: int, wait_s: float = 0.0, latency_s: float | None = None) -> None:
        """A fetch of so many elements, how long the worker waited for it, and how long it took; None: nobody knows."""
        with self._lock:
            num_bytes = BYTES * received
            if latency_s is not None:
                _count_in(self.counted.fetch_latency, latency_s)
            self.counted.count(fetches=1, wait_fetch_s=wait_s, received_bytes=num_bytes, fetched_bytes=num_bytes)

    def count_acknowledged(self, latency_s: float) -> None:
        """How long a push took until all shards had acknowledged it."""
        with self._lock:
            _count_in(self.counted.push_latency, latency_s)

    def count_push_wait(self, wait_s: float) -> None:
        """For acknowledgements, and for a buffer to be free again."""
        with self._lock:
            self.counted.count(wait_push_s=wait_s)


def _count_in(counts: LatencyCounts, seconds: float) -> None:
    bucket = bucket_of(seconds)
    counts[bucket] = counts.get(bucket, 0) + 1
