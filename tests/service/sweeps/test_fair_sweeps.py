"""A sweep on Ray beside other claims of its user: it waits without processes, and goes on."""

import asyncio
from pathlib import Path

import pytest
import ray

from service.jobs.queueing.claims import Claim, Quotas
from service.sweeps.driver import is_alive
from service.sweeps.trial_store import TrialState, TrialStore
from tests.service.sweeps.managed_sweeps import managed, nothing_left, spec, until
from tests.service.sweeps.sleeping_trial import Sleeping, hold
from trainers import ClusterInfo, Resources, State

OTHER = Claim("0", "ann", 0, Resources(0, 0))
"""Another job of hers, which takes her only place."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_trials_that_wait_for_their_turn_hold_no_processes(tmp_path: Path, cluster: ClusterInfo) -> None:
    first, second = (hold(tmp_path, batch=8, seed=seed) for seed in (0, 1))  # each is seen before it ends

    async def story() -> None:
        async with managed(tmp_path, Sleeping, Quotas(running_jobs=1)) as sweeps:
            wanted = spec({"seed": [0, 1]}, {"report_every_s": 0.4, "epochs": 3}, limits={"concurrent": 3})
            shown, _ = await sweeps.submit(wanted, user="ann")
            store, held = TrialStore(Path(shown.folder)), sweeps.jobs.queue.held

            async def one_runs() -> bool:
                assert store.counts()[TrialState.RUNNING] <= 1
                return store.counts()[TrialState.RUNNING] == 1

            async def driver_has_ended() -> bool:
                return store.counts()[TrialState.RUNNING] == 0 and not await asyncio.to_thread(is_alive, shown.id)

            await until(one_runs)
            held["0"] = OTHER
            first.unlink()
            await until(driver_has_ended)
            assert (await sweeps.show(shown.id)).state is State.RUNNING
            assert all(group["state"] == "REMOVED" for group in ray.util.placement_group_table().values())
            del held["0"]
            await until(one_runs)
            second.unlink()
            async for _ in await sweeps.events(shown.id):
                await one_runs()
            done = await sweeps.show(shown.id)
            assert (done.state, done.trials["succeeded"]) == (State.SUCCEEDED, 2)
            assert not held
        nothing_left(shown.id, [row.id for row in store.trials()])

    asyncio.run(story())
