"""What an actor's process uses of its machine."""

import ctypes
import os
import socket
import stat
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from trainers.elastic.heartbeat import Reading

if TYPE_CHECKING:
    import torch

LEAST_S = 1.0
"""Between two readings; heartbeats come every 1.5 s. One takes some tenths of a millisecond, most of it for the
connections."""

BYTES_OF_TCP_INFO, WHERE = 136, 120
"""Of the kernel's `struct tcp_info`, as far as `tcpi_bytes_acked` and `tcpi_bytes_received` (Linux 4.2), and their
offset."""

TCP_INFO = 11
"""Linux's number of the option; not everywhere does Python know it."""
LIBC = ctypes.CDLL(None)


class UsageMeter:
    """Of one process. Its calls are made by one thread at a time."""

    def __init__(self, actor: str) -> None:
        """actor: Its name within the run: `worker/2`, `evaluator`."""
        self.actor = actor
        self.process = psutil.Process()
        self.traffic = Traffic()
        self.gpu: GpuMeter | None = None
        self.read_s = -LEAST_S  # when it was read last, on the monotonic clock

    def read_if_due(self, device: "torch.device | None" = None) -> Reading | None:
        """A reading; None so soon after the last one, or where the system tells nothing: whoever asks whether an actor
        is alive gets an answer in any case. device: Where this process computes, if it does."""
        now_s = time.monotonic()
        if now_s - self.read_s < LEAST_S:
            return None
        self.read_s = now_s
        with suppress(OSError, psutil.Error, RuntimeError):
            return self.read(device)
        return None

    def read(self, device: "torch.device | None" = None) -> Reading:
        """What it uses now."""
        sent, received = self.traffic.read()
        share, gpu_bytes = None, None
        if device is not None and device.type == "cuda":
            self.gpu = self.gpu or GpuMeter(device)
            share, gpu_bytes = self.gpu.read()
        return Reading(
            actor=self.actor,
            at_s=time.monotonic(),
            cpu_s=time.process_time(),
            memory_bytes=self.process.memory_info().rss,
            sent_bytes=sent,
            received_bytes=received,
            gpu_share=share,
            gpu_bytes=gpu_bytes,
        )


class Traffic:
    """Bytes of all TCP connections that this process has, by the kernel's own count: whoever opened them, gloo and NCCL
    over sockets among them. A connection that is closed counts as far as it was read last."""

    def __init__(self) -> None:
        self.gone = (0, 0)
        self.open: dict[int, tuple[int, int]] = {}  # inode of a socket -> sent, received

    def read(self) -> tuple[int, int]:
        """Bytes that were sent and acknowledged, and bytes that came, so far."""
        before, self.open = self.open, dict(_connections())
        closed = [counted for inode, counted in before.items() if inode not in self.open]
        self.gone = _sums([self.gone, *closed])
        return _sums([self.gone, *self.open.values()])


class GpuMeter:
    """Of the GPU on which a process computes. What cannot be read is None."""

    def __init__(self, device: "torch.device") -> None:
        self.device = device
        self.handle: Any = None  # NVML's
        self.nvml: Any = None
        with suppress(Exception):  # no library, no driver, a GPU that NVML does not show: a curve is missing
            import torch
            from ray._private.thirdparty import pynvml

            pynvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}".encode())
            self.nvml = pynvml

    def read(self) -> tuple[float | None, int | None]:
        """The share of the last moments (0.2 to 1 s) in which the GPU computed, whoever had it compute, and the bytes
        that this process has taken from it."""
        import torch

        share = None
        if self.nvml is not None:
            with suppress(self.nvml.NVMLError):
                share = self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu / 100
        taken = torch.cuda.memory_reserved(self.device) if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        return share, taken


def _sums(counted: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(sent for sent, _ in counted), sum(received for _, received in counted)


def _connections() -> list[tuple[int, tuple[int, int]]]:
    """Inode, bytes sent and bytes received of each TCP connection of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed since
            descriptor = int(name)
            status = os.fstat(descriptor)
            if stat.S_ISSOCK(status.st_mode) and (counted := _counted(descriptor)) is not None:
                found.append((status.st_ino, counted))
    return found


def _counted(descriptor: int) -> tuple[int, int] | None:
    """None where it is no TCP connection. The kernel is asked past Python's `socket`, which sets a connection that it
    is given to the default timeout of the process, where somebody has set one."""
    told, size = ctypes.create_string_buffer(BYTES_OF_TCP_INFO), ctypes.c_uint(BYTES_OF_TCP_INFO)
    failed = LIBC.getsockopt(descriptor, socket.IPPROTO_TCP, TCP_INFO, told, ctypes.byref(size))
    if failed or size.value < BYTES_OF_TCP_INFO:
        return None
    sent, received = struct.unpack_from("QQ", told, WHERE)
    return sent, received
