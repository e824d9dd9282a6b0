"""Sends deliveries to webhooks: signed, to the address that was checked, and again later if that fails."""

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import dataclass

import httpx2

from service.errors import WebhookRefused
from service.webhooks.addresses import Network, Target, certificates, resolve
from service.webhooks.signature import sign
from service.webhooks.webhook_store import Due, Webhooks

LOOK_EVERY_S = 1.0
ANSWER_WITHIN_S = 10.0
RETRY_AFTER_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 4 * 3600.0, 12 * 3600.0)
"""The pauses between attempts; after the last one the delivery is given up."""

LONGEST_REST_S = 60.0
"""How long a webhook that fails again and again is sent nothing. None of its messages loses an attempt meanwhile."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rest:
    """How long a webhook that failed is left alone."""

    failures: int
    """In a row."""
    until: float


class Sender:
    """The webhooks of one service. Each has a task of its own, so that a slow one does not delay the others."""

    def __init__(
        self,
        webhooks: Webhooks,
        allowed: tuple[Network, ...] = (),
        look_every_s: float = LOOK_EVERY_S,
        retry_after_s: tuple[float, ...] = RETRY_AFTER_S,
    ) -> None:
        self.webhooks = webhooks
        self.allowed = allowed
        self.look_every_s = look_every_s
        self.retry_after_s = retry_after_s
        self.sending: dict[str, asyncio.Task[None]] = {}
        self.rests: dict[str, Rest] = {}
        self.task: asyncio.Task[None] | None = None

    async def check(self, url: str) -> None:
        """Raise WebhookRefused for a URL that no message may be sent to."""
        await resolve(url, self.allowed)

    async def start(self) -> None:
        """Begin to send."""
        self.task = asyncio.create_task(self._run(), name="webhooks")

    async def stop(self) -> None:
        """Stop; the next service sends what was not delivered."""
        tasks = [*self.sending.values(), *([self.task] if self.task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                if await asyncio.to_thread(self.webhooks.collect):
                    busy = frozenset(self.sending) | self._resting()  # before: what is being sent is due in the query
                    self._begin(await asyncio.to_thread(self.webhooks.due, busy), busy)
            except Exception:  # the database may be back in a second
                logger.exception("could not send to webhooks")
            await asyncio.sleep(self.look_every_s)

    def _begin(self, found: list[Due], busy: frozenset[str]) -> None:
        """Send to each webhook that is not busy, its messages one after the other."""
        by_hook = defaultdict[str, list[Due]](list)
        for due in found:
            by_hook[due.webhook_id].append(due)
        for hook, messages in by_hook.items():
            if hook not in busy:
                task = self.sending[hook] = asyncio.create_task(self._send_all(messages), name=f"webhook {hook}")
                task.add_done_callback(lambda _, hook=hook: self.sending.pop(hook, None))  # type: ignore[misc]

    async def _send_all(self, messages: list[Due]) -> None:
        for due in messages:
            error = await self.send(due)
            again_s = self.retry_after_s[due.attempts] if due.attempts < len(self.retry_after_s) else None
            await asyncio.to_thread(self.webhooks.tried, due, error, again_s)
            if error:
                failures = self.rests[due.webhook_id].failures + 1 if due.webhook_id in self.rests else 1
                rest_s = min(LONGEST_REST_S, self.look_every_s * 2**failures)
                self.rests[due.webhook_id] = Rest(failures, time.monotonic() + rest_s)
                return
            self.rests.pop(due.webhook_id, None)

    def _resting(self) -> frozenset[str]:
        """The webhooks that have failed a moment ago."""
        return frozenset(hook for hook, rest in self.rests.items() if rest.until > time.monotonic())

    async def send(self, due: Due) -> str:
        """Send one message. Returns what went wrong, or nothing."""
        try:
            target = await resolve(due.url, self.allowed)  # each time, because a name may have another address by now
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await _post(due, target)
        except WebhookRefused as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {ANSWER_WITHIN_S:g} s"
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return f"{type(error).__name__}: {error}"


async def _post(due: Due, target: Target) -> str:
    """Send to the very address that was checked; the host's name goes along for the server and its certificate."""
    url = httpx2.URL(due.url)
    headers = {"Content-Type": "application/json", "Host": url.netloc.decode("ascii"), "User-Agent": "millrace"}
    headers |= sign(due.secret, due.message_id, int(time.time()), due.body)
    extensions = {"sni_hostname": target.name} if target.scheme == "https" else {}
    address = url.copy_with(host=str(target.address))
    async with (
        httpx2.AsyncClient(
            verify=certificates(), trust_env=False, follow_redirects=False, timeout=ANSWER_WITHIN_S
        ) as client,
        client.stream("POST", address, content=due.body, headers=headers, extensions=extensions) as answer,
    ):
        # Only the status of the answer is read: its body could be endless.
        return (
            ""
            if answer.is_success
            else f"it answered {answer.status_code}" + " and led elsewhere" * answer.has_redirect_location
        )
