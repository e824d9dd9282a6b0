"""/v1/webhooks: URLs that are sent a message when jobs and sweeps change their state. For admins."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from api.http.audit import told
from api.http.auth import caller
from api.http.exact import Exact
from api.http.problems import ProblemError, answers
from api.http.routes.submission import tell_where
from service import Delivery, Documented, Sender, State, Webhook, WebhookRefused


class NewWebhook(Documented):
    """A webhook to be."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"url": "https://192.0.2.1/hook", "states": ["SUCCEEDED", "FAILED"]}},
    )

    url: Annotated[str, Field(min_length=1, max_length=500)]
    """Where to, by http or https. Addresses that are not public are refused unless the server allows them."""
    states: Annotated[list[State], Field(max_length=len(State))] = []
    """Which states to tell of; empty: all."""


class MadeWebhook(Webhook):
    """A webhook, and what proves its messages."""

    secret: str
    """For checking signatures. It is shown this once."""


class WebhookList(BaseModel):
    """All webhooks, newest first."""

    webhooks: list[Webhook]


class WebhookView(Webhook):
    """A webhook, and how it fares."""

    deliveries: list[Delivery]
    """Its last messages, newest first."""


def router(sender: Sender) -> APIRouter:
    """The routes over one sender."""
    routes = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=Exact)
    webhooks = sender.webhooks

    @routes.post("", status_code=201, responses=answers(422))
    async def create(request: Request, response: Response, wanted: NewWebhook) -> MadeWebhook:
        """Tell an address, from now on, when jobs and sweeps change their state; signed with the secret."""
        told(request, url=wanted.url, states=wanted.states)
        try:
            await sender.check(wanted.url)
        except WebhookRefused as error:
            raise ProblemError(422, str(error), "/url", remedy="give the URL of a public web server") from None
        user = caller(request).user
        hook, secret = await asyncio.to_thread(webhooks.create, wanted.url, wanted.states, user)
        tell_where(response, f"/v1/webhooks/{hook.id}", is_new=True)
        return MadeWebhook(**hook.model_dump(), secret=secret)

    @routes.get("")
    async def list_webhooks() -> WebhookList:
        """Webhooks, newest first."""
        return WebhookList(webhooks=await asyncio.to_thread(webhooks.all))

    @routes.get("/{webhook_id}", responses=answers(404))
    async def show(webhook_id: str) -> WebhookView:
        """One webhook, and its last messages."""
        hook = await asyncio.to_thread(webhooks.get, webhook_id)
        deliveries = await asyncio.to_thread(webhooks.deliveries, webhook_id)
        return WebhookView(**hook.model_dump(), deliveries=deliveries)

    @routes.delete("/{webhook_id}", status_code=204, responses=answers(404))
    async def delete(webhook_id: str) -> None:
        """Tell it nothing more, also not what is still waiting."""
        await asyncio.to_thread(webhooks.delete, webhook_id)

    return routes
