"""Models of `transformers`, built from their configuration; their weights are drawn from the seed, or come from a local
folder. Nothing is downloaded."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.names import local_source
from trainers.models.weights import initialise_from, read_weights


def build_hugging_face(model: ModelSpec, head: str, facts: DataFacts, seed: int) -> nn.Module:
    """The model that `hf:<type>`, `hf:<folder>` or `hf:<config.json>` names, on the CPU, in training mode.

    Args:
        model: The section of the spec; its `kwargs` are values of the configuration.
        head: The end of the name of the class, as `CausalLM` of `AutoModelForCausalLM`; empty: the configuration says.
        facts: Classes, vocabulary and image sizes go into the configuration where it has them and `kwargs` does not.
        seed: Of the initial weights.

    Raises:
        SpecRejected: transformers is not installed, or cannot build that.
    """
    transformers, source = _library(), model.name.removeprefix("hf:")
    if model.init != "default" or model.zero_gamma:
        raise SpecRejected("model.init, model.zero_gamma: a model of transformers draws its own initial weights")
    config = _configuration(transformers, source, model.kwargs, facts)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            module: nn.Module = _constructor(transformers, source, head, config)(config).float()
        except (ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
            raise SpecRejected(f"model: {model.name} cannot be built so: {_first_line(error)}") from error
    if model.weights is not None:
        tensors = read_weights(Path(model.weights), model.key_mapping)
        initialise_from(module, _as_in(module, tensors), model)
    return module.train()


def gives_logits(module: nn.Module) -> nn.Module:
    """The same model, whose output is the tensor `logits` alone, as the tasks by name expect it."""
    module.register_forward_hook(_logits)
    return module


def _logits(module: nn.Module, _inputs: Any, outputs: Any) -> Tensor:
    found = getattr(outputs, "logits", None)
    if not isinstance(found, Tensor):
        raise TypeError(f"{type(module).__name__} gives no logits; take task: transformers, which uses its own loss")
    return found


def _library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise SpecRejected("model: transformers is not installed: pip install 'millrace[hf]'") from error
    return transformers


def _configuration(transformers: Any, source: str, kwargs: Mapping[str, Any], facts: DataFacts) -> Any:
    kinds = transformers.CONFIG_MAPPING
    if local_source(f"hf:{source}"):
        if not Path(source).exists():
            problem = f"there is neither a folder nor a config.json at {source}, and Millrace downloads none"
            raise SpecRejected(f"model: {problem}; fetch it first, or name a type of model")
        make = _from_file(transformers, source)
    elif source in kinds.keys():  # noqa: SIM118  # its own mapping, which imports what is asked for
        make = kinds[source]
    else:
        near = ", ".join(difflib.get_close_matches(source, kinds.keys())) or "gpt2, llama, bert, vit"
        raise SpecRejected(f"model: transformers knows no type {source!r}; did you mean {near}?")
    try:
        plain = make()
        for name in kwargs:
            if not hasattr(plain, name):
                near = ", ".join(difflib.get_close_matches(name, plain.to_dict())) or ", ".join(
                    list(plain.to_dict())[:8]
                )
                raise SpecRejected(f"model.kwargs: the configuration of {source} has no {name!r}; did you mean {near}?")
        sizes = {name: value for name, value in _sizes(facts).items() if hasattr(plain, name) and name not in kwargs}
        return make(**{"use_cache": False, **sizes, **kwargs} if hasattr(plain, "use_cache") else {**sizes, **kwargs})
    except (ValueError, TypeError, OSError, KeyError) as error:
        raise SpecRejected(f"model: the configuration of {source} cannot be made: {_first_line(error)}") from error


def _from_file(transformers: Any, source: str) -> Any:
    def make(**values: Any) -> Any:
        return transformers.AutoConfig.from_pretrained(source, local_files_only=True, **values)

    return make


def _sizes(facts: DataFacts) -> dict[str, int]:
    """What the data say of a model's sizes, under the names of transformers."""
    labels = facts.classes or facts.pixel_classes
    found = {"vocab_size": facts.vocabulary, "num_labels": labels}
    if len(facts.inputs) == 3:
        found |= {"num_channels": facts.inputs[0], "image_size": facts.inputs[1]}
    return {name: size for name, size in found.items() if size}


def _constructor(transformers: Any, source: str, head: str, config: Any) -> Any:
    if not head:
        named = (config.architectures or [""])[0]
        if not hasattr(transformers, named):
            raise SpecRejected(
                f"task.kwargs: the configuration of {source} names no class; set head, as in head: CausalLM"
            )
        return getattr(transformers, named)
    auto = getattr(transformers, f"AutoModelFor{head}", None)
    if auto is None:
        heads = [name.removeprefix("AutoModelFor") for name in dir(transformers) if name.startswith("AutoModelFor")]
        near = ", ".join(difflib.get_close_matches(head, heads)) or "CausalLM, MaskedLM, SequenceClassification"
        raise SpecRejected(f"task.kwargs: transformers has no AutoModelFor{head}; did you mean {near}?")
    return auto.from_config


def _as_in(module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a folder under the names of this model: that of another head has the same body with or without its
    prefix."""
    state, prefix = module.state_dict(), f"{getattr(module, 'base_model_prefix', '')}."
    found = {}
    for name, tensor in tensors.items():
        others = (name, prefix + name, name.removeprefix(prefix))
        found[next((other for other in others if other in state), name)] = tensor
    return found


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
