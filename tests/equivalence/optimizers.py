"""The optimizers of torch.optim, or written out, that a spec's stands for."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tests.optim.written import Fused, Written, equation_10, lamb, lars, lion, muon, tensorflow_rmsprop
from trainers.optim.decay import exempt_names
from trainers.optim.members import group_members
from trainers.optim.optimizers.torch_optim.rule import torch_class
from trainers.optim.roles import hidden_matrices
from trainers.spec import TrainSpec


def torch_optimizer(spec: TrainSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of torch.optim that a spec's rule stands for."""
    o, decay, params = spec.optimizer, spec.batch_scaling.weight_decay, parameter_groups(spec, model)
    common = {"lr": o.lr, "weight_decay": decay, "foreach": False}
    match o.name:
        case "sgd" | "nesterov":
            options = {"momentum": o.momentum, "nesterov": True} if o.name == "nesterov" else {}
            return torch.optim.SGD(params, **options, **common)
        case "momentum" if o.equation == 9:
            return torch.optim.SGD(params, momentum=o.momentum, **common)
        case "rmsprop" if o.form == "pytorch":
            return torch.optim.RMSprop(params, alpha=o.decay, eps=o.epsilon, **common)
        case "torch":
            return torch_class(o.optimizer)(params, lr=o.lr, weight_decay=decay, **o.kwargs)  # type: ignore[call-arg]
        case "adagrad":
            return torch.optim.Adagrad(params, eps=o.epsilon, **common)
    return (fused_adam if o.name in ("adam", "adamw") else written_optimizer)(spec, model, params)


def fused_adam(spec: TrainSpec, _: nn.Module, params: list[dict[str, Any]]) -> Fused:
    """Those of which there is one kernel."""
    o, kinds = spec.optimizer, {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    decay = spec.batch_scaling.weight_decay
    return Fused(params, kinds[o.name], lr=o.lr, weight_decay=decay, betas=o.betas, eps=o.epsilon)


def written_optimizer(spec: TrainSpec, model: nn.Module, params: list[dict[str, Any]]) -> Written:
    """Those that torch.optim does not have."""
    o, decay = spec.optimizer, spec.batch_scaling.weight_decay
    if o.name in ("lars", "lamb", "muon"):
        params = [g | {"own_decay": g["weight_decay"], "weight_decay": 0.0} for g in params]
        if o.name == "muon":
            hidden = [model.get_parameter(name) for name in hidden_matrices(model)]
            return Written(params, o.lr, 0.0, muon, 0.0, hidden=hidden, adamw_lr=o.adamw_lr / o.lr)
        if o.name == "lamb":
            return Written(params, o.lr, 0.0, lamb, 0.0)
        return Written(params, o.lr, 0.0, lars, 0.0, trust=o.trust)
    if o.name == "lion":
        params = [group | {"decoupled": group["weight_decay"], "weight_decay": 0.0} for group in params]
        return Written(params, o.lr, 0.0, lion, 0.0, betas=o.betas, decoupled=decay)
    if o.name == "momentum":
        return Written(params, o.lr, decay, equation_10, 0.0, momentum=o.momentum, corrects=o.momentum_correction)
    return Written(params, o.lr, decay, tensorflow_rmsprop, 1.0, decay=o.decay, epsilon=o.epsilon)


def parameter_groups(spec: TrainSpec, model: nn.Module) -> list[dict[str, Any]]:
    """What torch.optim is given: those with weight decay and those without, for the spec's groups and for the rest."""
    o, named = spec.optimizer, dict(model.named_parameters())
    exempt, members = exempt_names(model, o.no_decay), group_members(o.groups, list(named))
    rest = {name for name in named if not any(name in mine for mine in members)}
    found = []
    for group, mine in [(None, rest), *zip(o.groups, members, strict=True)]:
        part = o if group is None else o.of_group(group)
        scaling = replace(spec.batch_scaling, optimizer=part)
        options = {"rate": part.lr / o.lr, "weight_decay": scaling.weight_decay, "scaled": scaling.learning_rate}
        options |= {"schedule": group and group.schedule}
        options |= {name: getattr(part, name) for name in ("momentum", "betas") if hasattr(part, name)}
        options |= {"eps": part.epsilon} if hasattr(part, "epsilon") else {}
        options |= {"alpha": part.decay} if hasattr(part, "decay") else {}
        for names, more in ((mine - exempt, {}), (mine & exempt, {"weight_decay": 0.0, "exempt": True})):
            chosen = [named[name] for name in named if name in names]
            found.append({"params": chosen, "exempt": False} | options | more)
    return found
