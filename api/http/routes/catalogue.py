"""/v1/schema/job, /v1/algorithms, /v1/models, /v1/datasets, /v1/cluster: what there is to choose from."""

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from api.http.exact import Exact
from service import (
    Algorithm,
    ClusterInfo,
    Dataset,
    JobManager,
    Model,
    algorithms,
    datasets,
    job_schema,
    models,
)


class Amount(BaseModel):
    """Of what Ray hands out."""

    cpus: float
    gpus: float


class Cluster(BaseModel):
    """The Ray cluster that jobs run on."""

    address: str
    dashboard_url: str
    """Ray's own dashboard."""
    total: Amount
    available: Amount
    """What nobody holds now."""
    grows_to: Amount | None
    """What an autoscaler may make of it; null: it stays as large as it is."""
    queued: int
    """Jobs that wait."""


def router(manager: JobManager, cluster: ClusterInfo) -> APIRouter:
    """The routes over one manager and its cluster."""
    routes = APIRouter(tags=["catalogue"], route_class=Exact)

    @routes.get("/schema/job")
    async def schema() -> dict[str, Any]:
        """The complete JSON Schema of a job spec."""
        return job_schema()

    @routes.get("/algorithms")
    async def list_algorithms() -> list[Algorithm]:
        """Every parallel SGD, with its options."""
        return algorithms()

    @routes.get("/models")
    async def list_models() -> list[Model]:
        """Every model that has a name, ours first, then torchvision's."""
        return models()

    @routes.get("/datasets")
    async def list_datasets() -> list[Dataset]:
        """Every dataset that has a name."""
        return datasets()

    @routes.get("/cluster")
    async def show_cluster() -> Cluster:
        """What the cluster has, what of it is free, and how many jobs wait for it."""
        total, available = await asyncio.to_thread(
            lambda: (manager.runs.total_resources(), manager.runs.available_resources())
        )
        growth = manager.config.growth
        most = total + growth.beyond(total)
        return Cluster(
            address=cluster.address,
            dashboard_url=cluster.dashboard_url,
            total=Amount(cpus=total.cpus, gpus=total.gpus),
            available=Amount(cpus=available.cpus, gpus=available.gpus),
            grows_to=Amount(cpus=most.cpus, gpus=most.gpus) if growth.groups else None,
            queued=await manager.num_queued(),
        )

    return routes
