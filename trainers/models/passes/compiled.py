"""torch.compile around a model, so that its bits are a function of a minibatch's shape, whoever computes it, and
whatever was computed before."""

import atexit
import importlib.util
import os
import shutil
import tempfile
import threading
from typing import Any

import torch
from torch import Tensor, nn

from trainers.data.batches import Data
from trainers.data.loading.files import COMPILED
from trainers.errors import SpecRejected
from trainers.models.dropout import ExampleDropout
from trainers.models.objective import Objective, loss_of

SHAPES = 64
"""Of minibatches that are compiled, each by itself; more fail the run, for torch would go on without compiling."""

_compiling = threading.Event()


def is_compiling() -> bool:
    """Whether this process compiles: it waits for a compiler then, which uses the CPU in its place."""
    return _compiling.is_set()


class Cost(nn.Module):
    """From a minibatch to the sum of its losses, ()."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, data: Data) -> Tensor:
        return loss_of(self.objective, self.model, data).total


def compiled(model: nn.Module) -> nn.Module:
    """What computes as the model does; the model itself stays as it is, with its names.

    Nothing is measured to choose a kernel, and no kernel serves several shapes: torch would make one for all sizes once
    it has seen two, and a worker that has not would have other bits. Dropout by example is not compiled.
    """
    _begin_folder()
    import torch._dynamo.config as tracing
    from torch._dynamo.callback import callback_handler

    if _begins not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_begins)
        callback_handler.register_end_callback(_ends)
    tracing.recompile_limit, tracing.fail_on_recompile_limit_hit = SHAPES, True
    for module in model.modules():
        if isinstance(module, ExampleDropout) and module.p:
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign, no-untyped-call]
    # Precompiled headers would lie in torch's own folder, where another user may have left some.
    options: dict[str, Any] = {"deterministic": True, "compile_threads": 1, "cpp_cache_precompile_headers": False}
    found: Any = torch.compile(model, dynamic=False, options=options)
    assert isinstance(found, nn.Module)
    return found


def check_compiler(device: torch.device) -> None:
    """Raises SpecRejected where nothing can be compiled."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise SpecRejected(
                "model.compile: there is no triton, which compiles for a GPU; install it, or leave it out"
            )
        return
    _begin_folder()
    from torch._inductor import exc
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        raise SpecRejected(
            "model.compile: there is no C++ compiler on this worker's node; install g++ there, or leave it out"
        ) from None


def _begins(_: object) -> None:
    _compiling.set()


def _ends(_: object) -> None:
    _compiling.clear()


def _begin_folder() -> None:
    """Let what is compiled lie in a folder of this process alone: torch's own is one for all processes of a user, whose
    name anybody can foretell, and grows without end."""
    folder = os.path.join(tempfile.gettempdir(), f"{COMPILED}{os.getpid()}")
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") != folder:
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder, mode=0o700)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
