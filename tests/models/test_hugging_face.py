"""Models of transformers: their configuration, their weights."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from pydantic import ValidationError

from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.hugging_face import build_hugging_face, gives_logits
from trainers.spec import TrainSpec

SIZES = {
    "vocab_size": 21, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 16,
}  # fmt: skip
FACTS = DataFacts((9,))


def bert(**fields: object) -> ModelSpec:
    return ModelSpec.model_validate({"name": "hf:bert", "kwargs": SIZES} | fields)


def test_initial_weights_follow_from_the_seed() -> None:
    one, same, other = (build_hugging_face(bert(), "MaskedLM", FACTS, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_folder_gives_configuration_and_weights(tmp_path: Path) -> None:
    kept = build_hugging_face(bert(), "MaskedLM", FACTS, 1)
    kept.save_pretrained(tmp_path / "whole")
    kept.bert.save_pretrained(tmp_path / "body")  # without the prefix of its names
    for folder, names in (("whole", kept.state_dict()), ("body", kept.bert.state_dict(prefix="bert."))):
        path = str(tmp_path / folder)
        model = ModelSpec.model_validate({"name": f"hf:{path}", "weights": path})
        found = build_hugging_face(model, "MaskedLM", FACTS, 2).state_dict()
        assert names.keys() <= found.keys()
        assert all(torch.equal(found[name], value) for name, value in names.items())


def test_shards_of_weights_are_read_by_their_index(tmp_path: Path) -> None:
    kept = build_hugging_face(bert(), "MaskedLM", FACTS, 1)
    kept.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(set(json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"].values())) > 1
    found = build_hugging_face(bert(weights=str(tmp_path)), "MaskedLM", FACTS, 2).state_dict()
    assert all(torch.equal(found[name], value) for name, value in kept.state_dict().items())


def test_a_relative_path_is_one_of_where_the_spec_was_submitted(tmp_path: Path) -> None:
    spec = TrainSpec.model_validate({"model": "hf:./bert/config.json", "task": "transformers"})
    assert spec.resolved(tmp_path).model.name == f"hf:{tmp_path}/bert/config.json"
    named = TrainSpec.model_validate({"model": "hf:bert", "task": "transformers"})
    assert named.resolved(tmp_path).model.name == "hf:bert"


def test_data_set_the_sizes_that_the_spec_leaves_open() -> None:
    facts = DataFacts((1, 8, 8), classes=7)
    sizes = {name: size for name, size in SIZES.items() if "voc" not in name and "pos" not in name}
    spec = ModelSpec.model_validate({"name": "hf:vit", "kwargs": sizes | {"patch_size": 4}})
    model = gives_logits(build_hugging_face(spec, "ImageClassification", facts, 0))
    assert isinstance(model, transformers.ViTForImageClassification)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 7)


def test_a_head_that_does_not_go_with_the_model_is_refused() -> None:
    with pytest.raises(SpecRejected, match="cannot be built so"):
        build_hugging_face(bert(), "ImageClassification", FACTS, 0)


def test_a_model_is_no_task() -> None:
    with pytest.raises(ValidationError, match="task: transformers"):
        TrainSpec.model_validate({"task": "hf:bert"})
