"""Whether a change kept the bits: trains a short spec of every algorithm and prints the hashes of the parameters.

`python -m benchmarks.parameter_hashes > before.txt`, then, with the change,
`python -m benchmarks.parameter_hashes --expect before.txt`. It needs nothing but `trainers.train`, so that it also runs
on a checkout that does not have it. Asynchronous algorithms have one worker here: with more, the order of their pushes
is that of the moment.
"""

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from trainers import TrainSpec, train
from trainers.runtime.cluster import embedded

BASE: dict[str, Any] = {"data": "digits", "model": "mlp", "workers": 2, "epochs": 2, "batch": 16, "seed": 3}
BASE |= {"optimizer": "momentum"}
BY_MESSAGES = {"transport": "process_group"}

SPECS: dict[str, dict[str, Any]] = {
    "sync canonical": {"algorithm": {"name": "sync", "reduction": "canonical"}},
    "sync fast": {"algorithm": {"name": "sync", "reduction": "fast"}, "workers": 3},
    "sync canonical by messages": BY_MESSAGES | {"workers": {"count": 2, "virtual": 5}},
    "sync canonical in 16 bits": BY_MESSAGES | {"workers": {"count": 3, "virtual": 4}, "wire": "bfloat16"},
    "sync fast by messages": BY_MESSAGES | {"algorithm": {"name": "sync", "reduction": "fast"}},
    "diloco, streaming": {"algorithm": {"name": "diloco", "average_every": 4, "fragments": 2, "delay": 1}},
    "sync through shards": {"algorithm": {"name": "sync", "form": "parameter_server"}, "ps": 2},
    "downpour": {"algorithm": {"name": "downpour"}, "workers": 1, "ps": 2},
    "downpour layerwise": {"algorithm": {"name": "downpour", "push": "layerwise"}, "workers": 1, "ps": 2},
    "mixed": {"algorithm": {"name": "mixed", "group": 2}, "ps": 2},
    "hybrid a": {"algorithm": {"name": "hybrid"}, "model": "lenet5"},
    "hybrid b, per turn": {"algorithm": {"name": "hybrid", "scheme": "b", "fc_batch": "per_turn"}, "model": "lenet5"},
    "parallel_sgd": {"algorithm": {"name": "parallel_sgd"}},
    "admm": {"algorithm": {"name": "admm", "form": "consensus"}},
    "batch norm": {"algorithm": "sync", "model": "resnet18", "data": {"name": "digits", "limit": 64}, "epochs": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expect", type=Path, help="what an earlier run printed: fail where a hash differs")
    expected = parser.parse_args().expect
    found = []
    with embedded(4):  # one Ray for all; as many logical CPUs as the largest of them takes
        for name, changes in SPECS.items():
            found.append(f"{hash_of(BASE | changes)}  {name}")
            print(found[-1], flush=True)
    if expected is not None and expected.read_text().splitlines() != found:
        sys.exit(f"the hashes differ from those in {expected}")


def hash_of(spec: dict[str, Any]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the finished model's tensors, in the order of their names."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(TrainSpec.model_validate(spec), Path(folder) / "run")
        assert result.model_path is not None
        tensors = load_file(result.model_path)
        return hashlib.sha256(b"".join(tensors[name].tobytes() for name in sorted(tensors))).hexdigest()[:16]


if __name__ == "__main__":
    main()
