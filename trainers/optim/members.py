"""Which of a model's parameters each group has."""

from collections.abc import Sequence

from torch import nn

from trainers.errors import SpecRejected
from trainers.optim.optimizers.groups import GroupSpec


def freeze(model: nn.Module, groups: Sequence[GroupSpec]) -> None:
    """Have no gradient computed of the parameters in frozen groups: so they are in no layout, and nothing is sent.

    Raises:
        SpecRejected: A group has no parameter, or no parameter is left to train.
    """
    named = dict(model.named_parameters())
    for group, names in zip(groups, group_members(groups, list(named)), strict=True):
        for name in names if group.frozen else ():
            named[name].requires_grad_(False)
    if any(parameter.requires_grad for parameter in named.values()):
        return
    if not named:
        raise SpecRejected("model: it has no parameters, so there is nothing to train")
    if not any(group.frozen for group in groups):
        raise SpecRejected("model: none of its parameters requires a gradient, so there is nothing to train")
    raise SpecRejected("optimizer.groups: all parameters are frozen; leave frozen out of one of the groups")


def group_members(groups: Sequence[GroupSpec], names: Sequence[str]) -> list[set[str]]:
    """The names of the parameters in each group: each belongs to the first that matches it.

    Raises:
        SpecRejected: A group has no parameter.
    """
    found: list[set[str]] = []
    for index, group in enumerate(groups):
        taken = set().union(*found)
        mine = {name for name in names if name not in taken and group.matches(name)}
        if not mine:
            some = ", ".join(list(names)[:6]) + (", ..." if len(names) > 6 else "")
            left = " that no group before it has" if any(map(group.matches, names)) else ""
            raise SpecRejected(
                f"optimizer.groups.{index}.match: {', '.join(group.patterns)} is the name of no parameter{left}; "
                f"the model has {some}"
            )
        found.append(mine)
    return found
