"""sync."""
from typing import Literal
from trainers.algorithms.config import AlgorithmConfig

class SyncConfig(AlgorithmConfig):
    """Synchronous SGD."""
    name: Literal["sync"] = "sync"
    form: Literal["all_reduce", "parameter_server"] = "all_reduce"
    """f"""
