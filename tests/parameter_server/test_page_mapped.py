"""Vectors read in place from rows of a mapped file."""

from itertools import product
from pathlib import Path

import pytest
import torch

from trainers.links.mapped import MappedFile
from trainers.models.layout import lay_out
from trainers.models.registry import build_model
from trainers.parameter_server.page_mapped import PAGE, WINDOWS, PageMappedRows, can_map_pages

NUMEL = 3 * PAGE + 70
PARTS = [slice(0, PAGE), slice(PAGE, 2 * PAGE), slice(2 * PAGE, NUMEL)]


@pytest.fixture
def file(tmp_path: Path) -> MappedFile:
    return MappedFile(tmp_path / "rows", 4, 4 * PAGE)


def test_each_part_comes_from_its_own_row_however_many_combinations_there_are(file: MappedFile) -> None:
    file.rows.copy_(torch.randn(file.rows.shape, generator=torch.Generator().manual_seed(1)))
    page_mapped = PageMappedRows(file.path, file.numel, PARTS)
    combinations = list(product(range(4), repeat=3))
    assert len(combinations) > 2 * WINDOWS
    for rows in [*combinations, *combinations[:20]]:
        expected = torch.cat([file.row(row)[part] for row, part in zip(rows, PARTS, strict=True)])
        assert torch.equal(page_mapped.vector(rows), expected)
    assert len(page_mapped.windows) == WINDOWS
    page_mapped.close()


def test_nothing_is_copied(file: MappedFile) -> None:
    page_mapped = PageMappedRows(file.path, file.numel, PARTS)
    vector = page_mapped.vector((2, 0, 1))
    file.row(0).fill_(5)
    file.row(1)[NUMEL - 1] = 7
    assert float(vector[PAGE]) == 5
    assert float(vector[-1]) == 7
    assert float(vector[0]) == 0
    assert page_mapped.vector((2, 0, 1)).data_ptr() == vector.data_ptr()
    page_mapped.close()
    assert float(vector[-1]) == 7


def test_large_shards_begin_with_a_page_and_small_ones_are_balanced() -> None:
    large = lay_out(build_model_named("convnet"), 3).shards
    assert can_map_pages(large)
    sizes = [cut.stop - cut.start for cut in large]
    assert max(sizes) < 1.01 * min(sizes)
    small = lay_out(build_model_named("mlp"), 3).shards
    assert max(cut.stop - cut.start for cut in small) - min(cut.stop - cut.start for cut in small) <= 128


def build_model_named(name: str) -> torch.nn.Module:
    from trainers.spec import ModelSpec

    return build_model(ModelSpec(name=name), 10, (1, 28, 28), 0)
