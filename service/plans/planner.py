"""Makes plans for the users of a service: the model is counted on the cluster, once, and the rest is arithmetic."""

import asyncio
import json
import logging
import time
from collections import OrderedDict
from pathlib import Path

from service.jobs.runs import Runs
from service.plans.spec import PlanSpec, as_field_error
from service.spec import JobSpec
from service.turns import Turns
from trainers import (
    Plan,
    PlanRequest,
    SpecRejected,
    StepProfile,
    TrainSpec,
    Workload,
    check_profile,
    counted_fields,
    kept_profile,
    read_profile,
)

MOST_IN_FLIGHT = 8
"""Plans that one user may have asked for at once: each may hold a process on the cluster, in turn."""
COUNTED = 200
"""Models whose counts are remembered, of some kilobytes each."""
COUNT_WITHIN_S = 600.0
"""To read the first examples of a dataset may take long; to count what was read takes seconds."""
PROFILES = 500
"""That are looked at for one of a minibatch."""

logger = logging.getLogger(__name__)


def make_plan(spec: TrainSpec, work: Workload, request: PlanRequest) -> Plan:
    """The plan, made in a process that may import torch, as the service itself must not. Raises SpecRejected."""
    from trainers import plan_work

    return plan_work(spec, work, request)


class Planner:
    """What the service knows for plans: counted models, and the profiles of its machine."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        """folder: With the profiles that `millrace plan --profile` has kept, for this service's machine."""
        self.runs = runs
        self.folder = folder
        self.turns = Turns(MOST_IN_FLIGHT, "plans of yours are being made")
        self.counted = OrderedDict[str, Workload]()

    async def prepared(self, asked: PlanSpec, base: Path, user: str) -> tuple[JobSpec, Workload, PlanRequest]:
        """What a plan is made of: the spec, its counted model, and the request with the profile that is kept.

        base: Where relative paths of the spec begin.

        Raises:
            SpecInvalid: With the field.
            TooManyInFlight: The user has asked for more plans than may be made at once.
        """
        spec, request = asked.spec.resolved(base), asked.request
        async with self.turns.place(user) as turn, turn:
            try:
                if request.profile is not None:
                    check_profile(spec.train, request.profile)
                elif request.cluster is None:
                    kept = await asyncio.to_thread(self.kept, spec)
                    request = request.model_copy(update={"profile": kept})
                return spec, await self._count(spec), request
            except SpecRejected as error:
                raise as_field_error(error) from None

    def kept(self, spec: JobSpec) -> StepProfile:
        """The profile that is kept of the spec's minibatch.

        Raises:
            SpecRejected: There is none.
        """
        for path in sorted(self.folder.glob("*.json"))[:PROFILES]:
            try:
                found = read_profile(path)
                check_profile(spec.train, found)
            except SpecRejected:
                continue
            return found
        if (mine := kept_profile(spec.train)) is not None:
            return mine
        raise SpecRejected(
            "profile: this service keeps no profile of this minibatch on its machine; give one that `millrace plan "
            "--profile FILE` has made, have the service's user run `millrace profile --step SPEC`, or give a cluster"
        )

    async def _count(self, spec: JobSpec) -> Workload:
        key = json.dumps(counted_fields(spec.train), sort_keys=True, default=str)
        if (found := self.counted.get(key)) is None:
            until = time.monotonic() + COUNT_WITHIN_S
            found = await asyncio.to_thread(self.runs.count, spec.train, lambda: time.monotonic() < until)
            if spec.code is None:  # what is in a folder of the user's may change
                self.counted[key] = found
        else:
            self.counted.move_to_end(key)
        while len(self.counted) > COUNTED:
            self.counted.popitem(last=False)
        return found
