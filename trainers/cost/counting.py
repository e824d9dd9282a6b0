"""The workload of a spec, from the counted layers of its model. Needs torch."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers import user_code
from trainers.algorithms.hybrid.column_layers import convolutions_of, met
from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.spatial.config import SpatialConfig
from trainers.algorithms.spatial.layers import RowLayer, RowModel
from trainers.cost.figures import Images, ModelCost, images_of
from trainers.cost.layers import profile_model, profile_spec
from trainers.cost.workload import HeadLayer, LayerWork, RowWork, Workload, num_states_of
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.dropout import replace_dropout
from trainers.models.registry import build_model
from trainers.models.split import exchanged, split_built
from trainers.optim.members import freeze
from trainers.optim.optimizers.groups import GroupSpec
from trainers.spec import TrainSpec


def count_workload(spec: TrainSpec) -> Workload:
    """What a worker of this spec has to do. Classifiers of images of a known size are counted without their data.

    Raises:
        SpecRejected: As in a run, for data, task, model or algorithm.
    """
    images = images_of(spec.model, spec.data) if spec.task.name == "classification" else None
    groups = _groups_of_whole(spec, images)
    counted = profile_model(spec.model, images, spec.code, groups) if images else profile_spec(spec)
    work = workload_of(counted, num_states_of(spec))
    if not isinstance(spec.algorithm, HybridConfig | SpatialConfig):
        return work
    if images is None:
        raise SpecRejected(
            f"data.name: {spec.algorithm.name} is planned for images whose size is known by name, and {spec.data.name} "
            "must be read for it; plan algorithm: sync"
        )
    with user_code.on_path(spec.code):
        if isinstance(spec.algorithm, HybridConfig):
            return work.model_copy(update=head_of(spec.model, images, spec.algorithm))
        return work.model_copy(update=rows_of(spec.model, images, spec.algorithm, counted))


def _groups_of_whole(spec: TrainSpec, images: Images | None) -> Sequence[GroupSpec]:
    """The optimizer's groups that have parameters in the model as it is built, as which it is counted here: those of
    projections have none.

    Raises:
        SpecRejected: A group has no parameter in the model that is trained either.
    """
    groups, config = spec.optimizer.groups, spec.algorithm
    if not isinstance(config, HybridConfig) or not config.rank or images is None:
        return groups
    with user_code.on_path(spec.code):
        module = build_model(spec.model, images.classes, images.shape, seed=0)
        names = [name for name, _ in module.named_parameters()]
        config.replace_layers(module, as_built=True)
    freeze(module, groups)
    return [group for group in groups if any(map(group.matches, names))]


def workload_of(counted: ModelCost, num_states: int) -> Workload:
    """The same figures, as the schedules take them."""
    layers = (
        LayerWork(
            name=layer.name,
            parameters=layer.cost.parameters,
            forward_flops=layer.cost.forward_flops,
            backward_flops=layer.cost.backward_flops,
        )
        for layer in counted.layers
    )
    return Workload(
        model=counted.model,
        example=counted.example,
        layers=tuple(layers),
        variables=counted.variables,
        num_states=num_states,
        activities=counted.whole.activities,
    )


def head_of(model: ModelSpec, images: Images, config: HybridConfig) -> dict[str, Any]:
    """The fields of a workload that tell what hybrid parallelism divides.

    Raises:
        SpecRejected: The model does not end in fully connected layers.
    """
    split = split_built(build_model(model, images.classes, images.shape, seed=0))
    head = split.head
    if config.connect is not None:
        config.connect.check_head(head)
    ways, restricted = config.ways(head), config.connect is not None
    return {
        "head": tuple(HeadLayer(name=layer.name, inputs=layer.inputs, outputs=layer.outputs) for layer in head),
        "head_exchanged": exchanged(head, ways, restricted),
        "head_exchanges": exchanged([replace(layer, outputs=1) for layer in head], ways, restricted),
    } | ({} if config.columns is None else _columns_of(split.backbone, images, config.columns))


def _columns_of(backbone: GraphModule, images: Images, columns: int) -> dict[str, Any]:
    """The fields of a workload that tell what columns exchange.

    Raises:
        SpecRejected: The model has no such columns.
    """
    convolutions_of(backbone, columns)
    found = met(backbone, columns, torch.zeros(1, *images.shape))
    return {"pixels": math.prod(images.shape), "columns_met": sum(found), "columns_meet": len(found)}


def rows_of(model: ModelSpec, images: Images, config: SpatialConfig, counted: ModelCost) -> dict[str, Any]:
    """The fields of a workload that tell what a spatial split divides.

    Raises:
        SpecRejected: The model does not begin with convolutions or poolings.
    """
    module = build_model(model, images.classes, images.shape, seed=0).to("meta")
    replace_dropout(module, seed=0)
    divided = RowModel(module, images.shape[1], config.until)
    layers = list[RowWork]()

    def whole(layer: RowLayer, x: Tensor) -> Tensor:
        window = layer.window
        layers.append(
            RowWork(
                kernel=window.kernel,
                stride=window.stride,
                padding=window.padding,
                dilation=window.dilation,
                height=layer.height,
                width=x.shape[1] * x.shape[3],
            )
        )
        return layer.compute(F.pad(x, (0, 0, window.padding, window.padding), value=layer.fill))

    maps = divided.rows(torch.zeros(1, *images.shape, device="meta"), whole, lambda norm, height, x: x)
    names = {str(node.target) for node in divided.by_rows}
    costs = [layer.cost for layer in counted.layers if layer.name in names]
    return {
        "row_layers": tuple(layers),
        "row_flops": sum(cost.forward_flops + cost.backward_flops for cost in costs),
        "row_names": tuple(layer.name for layer in counted.layers if layer.name in names),
        "row_activities": sum(cost.activities for cost in costs),
        "image": images.shape[0] * images.shape[1] * images.shape[2],
        "maps": maps.numel(),
    }
