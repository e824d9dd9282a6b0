"""What is read of a GPU."""

import time

import torch

from trainers.runtime.actors.usage import UsageMeter


def test_the_gpu_tells_how_busy_it_is_and_what_this_process_has_taken() -> None:
    held = torch.ones(50_000_000, device="cuda")  # 200 MB
    meter, until_s = UsageMeter("worker/0"), time.monotonic() + 10
    while not (reading := meter.read(torch.device("cuda", 0))).gpu_share and time.monotonic() < until_s:
        for _ in range(100):
            held.mul_(1.0)
        torch.cuda.synchronize()
    assert reading.gpu_share is not None
    assert 0 < reading.gpu_share <= 1
    assert reading.gpu_bytes is not None
    assert reading.gpu_bytes >= 200_000_000
