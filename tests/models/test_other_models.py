"""Models that nobody here wrote, unchanged: the same bits on one and on two workers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.equivalence.harness import Run, run_all_reduce
from trainers.spec import TrainSpec

IMAGES = {"data": "tests.tasks.usersets:small_images"}
WORDS = {
    "task": {"name": "transformers", "kwargs": {"head": "MaskedLM"}},
    "data": "tests.tasks.usersets:sentences",
}
TINY = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 16}
VISION = {
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 8,
    "mlp_dim": 16,
    "dropout": 0.1,
}
SWIN = {"patch_size": [4, 4], "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": [4, 4]}
GPT2 = {"n_layer": 1, "n_head": 2, "n_embd": 8, "bos_token_id": 0, "eos_token_id": 0}

OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "torchvision.models:shufflenet_v2_x0_5": ({}, IMAGES),
    "torchvision.models:mobilenet_v3_small": ({}, IMAGES),  # dropout, squeeze and excitation
    "torchvision.models:squeezenet1_1": ({}, IMAGES),
    "torchvision.models:mnasnet0_5": ({}, IMAGES),
    "torchvision.models:SwinTransformer": (SWIN, IMAGES),  # stochastic depth, tables of int64
    "torchvision.models:VisionTransformer": (VISION, IMAGES),
    "hf:gpt2": (GPT2, {"task": "language_model", "data": {"name": "text", "context": 8}}),
    "hf:vit": (TINY | {"patch_size": 8}, IMAGES),
    "hf:bert": (TINY | {"vocab_size": 21, "max_position_embeddings": 16}, WORDS),
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_a_model_of_somebody_elses_has_the_same_bits_on_two_workers(name: str, tmp_path: Path) -> None:
    kwargs, rest = OTHERS[name]
    (tmp_path / "text").write_bytes(bytes(range(32, 127)) * 3)
    data = {"limit": 8} | ({"name": rest["data"]} if isinstance(rest["data"], str) else rest["data"])
    if data["name"] == "text":
        data["root"] = str(tmp_path / "text")
    fields = {"model": {"name": name, "kwargs": kwargs}, "batch": 2, "epochs": 1, "seed": 1, **rest, "data": data}
    specs = [TrainSpec.model_validate(fields | {"workers": {"count": count, "virtual": 2}}) for count in (1, 2)]
    one, two = (run_all_reduce(Run(spec)) for spec in specs)
    assert torch.isfinite(one.params).all()
    assert torch.equal(one.params, two.params)
