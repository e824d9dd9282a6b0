"""A small spec of every task, by the task's name."""

from pathlib import Path

import numpy as np
import pytest

from tests.equivalence.harness import DIGITS
from tests.equivalence.usertasks import WEIGHTS

GPT = {"name": "gpt", "kwargs": {"layers": 2, "heads": 2, "width": 16}}
UNET = {"name": "unet", "kwargs": {"width": 4}}
HIDDEN = {"name": "transformers", "kwargs": {"head": "MaskedLM"}}
BERT = {
    "name": "hf:bert",
    "kwargs": {
        "vocab_size": 21, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    },
}  # fmt: skip
BOXES = {"name": "tests.tasks.usersets:boxes_in_images", "loader_processes": 0}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """2,000 letters of which a letter says much about the next one."""
    draw = np.random.default_rng(0)
    letters = (np.cumsum(draw.integers(0, 3, 2000)) % 26 + 97).astype(np.uint8)
    (tmp_path / "letters.txt").write_bytes(letters.tobytes())
    return tmp_path / "letters.txt"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    draw = np.random.default_rng(1)
    x, kind = draw.normal(size=(120, 3)), draw.integers(0, 2, 120)
    y = x @ [1.0, -2.0, 0.5] + kind + 0.1 * draw.normal(size=120)
    rows = [
        f"{a:.4f},{b:.4f},{c:.4f},{'red' if k else 'blue'},{t:.4f}" for (a, b, c), k, t in zip(x, kind, y, strict=True)
    ]
    (tmp_path / "table.csv").write_text("a,b,c,colour,y\n" + "\n".join(rows) + "\n")
    return tmp_path / "table.csv"


@pytest.fixture
def specs(text: Path, table: Path) -> dict[str, dict[str, object]]:
    digits = DIGITS | {"epochs": 1}  # 10 steps
    weighed = {"label_smoothing": 0.1, "class_weight": WEIGHTS}
    varied = {"rand_augment": {}, "random_erasing": {"probability": 0.4}, "mixup": 0.3, "cutmix": 1.0}
    mixed = digits | {"data": digits["data"] | varied | {"limit": 101}}
    words = {"name": "text", "root": str(text), "context": 12, "validation": 0.2}
    return {
        "smoothed classification": {"task": {"name": "classification", "kwargs": {"label_smoothing": 0.1}}, **digits},
        "weighted classification": {"task": {"name": "classification", "kwargs": weighed}, **digits},
        "mixed images": {"task": {"name": "classification", "kwargs": weighed}, **mixed},
        "regression": {"task": "regression", "data": {"name": "csv", "root": str(table), "target": "y"}},
        "language model": {"task": "language_model", "model": GPT, "data": words},
        "masked language model": {"task": "tests.equivalence.usertasks:Masked", "model": GPT, "data": words},
        "contrastive": {"task": "tests.equivalence.usertasks:Pairs", "data": DIGITS["data"]},
        "segmentation": {"task": "segmentation", "model": UNET, "data": "tests.tasks.usersets:shapes_in_images"},
        "detection": {"task": "detection", "batch": 2, "epochs": 1, "data": BOXES},
        "transformers": {"task": HIDDEN, "model": BERT, "data": "tests.tasks.usersets:sentences"},
    }
