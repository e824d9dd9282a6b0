"""What is tested here needs a GPU; where there is none, it is skipped."""

from pathlib import Path

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="there is no GPU"))
