"""On how many threads of its own a thread multiplies."""

import torch


def use_threads(count: int) -> None:
    """Have torch, in the calling thread, compute on so many threads.

    torch's own number is the process's, but MKL has one for each thread: a thread that nobody told multiplies with
    MKL's default until a large operation of torch's hands the number on. Its kernels depend on it, and so do bits.
    """
    torch.set_num_threads(count)
