"""Every dataset by name: what it holds, what a minibatch of it is, and how it is refused."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from trainers.data.batches import EVALUATION
from trainers.data.datasets import open_dataset
from trainers.data.draws import Int64Array
from trainers.data.names import RECORDS, SAVED, dataset_names
from trainers.errors import DataNotFound, UserCodeFailed
from trainers.spec import DataSpec

USERS = "tests.data.usersets"


def test_digits_need_nothing() -> None:
    digits = open_dataset(DataSpec(), seed=0)
    assert (digits.num_train, digits.num_test, digits.facts.classes) == (1437, 360, 10)
    assert digits.facts.inputs == (1, 8, 8)
    assert (digits.facts.mean, digits.facts.std) == ((0.3056,), (0.3763,)), "for who uses the model elsewhere"
    assert digits.fits_in_memory
    test = list(digits.test_batches(100))
    assert [len(batch) for batch in test] == [100, 100, 100, 60]
    assert all(batch.epoch == EVALUATION for batch in test)
    counts = np.bincount(torch.cat([batch.labels for batch in test]).numpy())
    assert counts.min() >= 35  # stratified: 34.8 to 36.6 of each class
    assert counts.max() <= 37
    (whole,) = digits.batches([(0, np.arange(1437))])
    assert whole.images.dtype == torch.float32
    assert whole.labels.dtype == torch.int64
    assert abs(float(whole.images.mean())) < 0.01
    assert float(whole.images.std()) == pytest.approx(1, abs=0.01)
    in_test = {image.numpy().tobytes() for batch in test for image in batch.images}
    assert not in_test & {image.numpy().tobytes() for image in whole.images}


def test_batches_follow_the_plan_one_item_at_a_time() -> None:
    pulled = []

    def plan() -> Iterator[tuple[int, Int64Array]]:
        for epoch, ids in [(0, [5, 3]), (0, [7]), (1, []), (1, [3, 5, 0])]:
            pulled.append(ids)
            yield epoch, np.array(ids, dtype=np.int64)

    with open_dataset(DataSpec(), seed=0) as digits:
        batches = digits.batches(plan())
        assert pulled == []
        first = next(batches)
        assert pulled == [[5, 3]]  # an asynchronous worker leases no sooner than it needs
        rest = list(batches)
    assert [batch.epoch for batch in [first, *rest]] == [0, 0, 1, 1]
    assert [batch.examples.tolist() for batch in [first, *rest]] == [[5, 3], [7], [], [3, 5, 0]]
    assert [tuple(batch.images.shape) for batch in rest] == [(1, 1, 8, 8), (0, 1, 8, 8), (3, 1, 8, 8)]
    assert torch.equal(first.images, rest[2].images[[1, 0]])
    assert torch.equal(first.labels, rest[2].labels[[1, 0]])
    with pytest.raises(AssertionError, match="after close"):
        next(digits.batches(plan()))


def test_replay_of_an_augmented_minibatch_is_exact() -> None:
    data = DataSpec(random_crop=1, horizontal_flip=True, random_resized_crop=8)
    ids = np.array([9, 2, 700])
    one, other = open_dataset(data, seed=4), open_dataset(data, seed=4)
    (first,) = one.batches([(3, ids)])
    *_, again = other.batches([(0, np.arange(50)), (3, np.array([2, 700, 9, 11]))])
    assert torch.equal(first.images, again.images[[2, 0, 1]])
    (different,) = open_dataset(data, seed=5).batches([(3, ids)])
    assert not torch.equal(first.images, different.images)


def test_limit_keeps_the_first_training_examples() -> None:
    ids = np.arange(10)
    few, all_ = open_dataset(DataSpec(limit=10), seed=0), open_dataset(DataSpec(), seed=0)
    assert (few.num_train, few.num_test) == (10, 360)
    assert torch.equal(next(few.batches([(0, ids)])).images, next(all_.batches([(0, ids)])).images)
    assert open_dataset(DataSpec(limit=100_000), seed=0).num_train == 1437


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_the_real_mnist(name: str, shared_data: Path) -> None:
    dataset = open_dataset(DataSpec(name=name, root=str(shared_data)), seed=0)
    assert (dataset.num_train, dataset.num_test, dataset.facts.classes) == (60_000, 10_000, 10)
    assert dataset.facts.inputs == (1, 28, 28)
    (batch,) = dataset.batches([(0, np.arange(0, 60_000, 20))])
    assert abs(float(batch.images.mean())) < 0.03
    assert float(batch.images.std()) == pytest.approx(1, abs=0.03)


def test_cifar10_comes_through_torchvisions_class(cifar10: Path) -> None:
    dataset = open_dataset(DataSpec(name="cifar10", root=str(cifar10)), seed=0)
    assert (dataset.num_train, dataset.num_test, dataset.facts.classes) == (50, 10, 10)
    assert dataset.facts.inputs == (3, 32, 32)
    (batch,) = dataset.batches([(0, np.array([0, 11]))])
    assert batch.labels.tolist() == [0, 1]
    import torchvision.datasets
    from torchvision.transforms.v2 import functional

    original = functional.pil_to_tensor(torchvision.datasets.CIFAR10(str(cifar10))[11][0])
    scaled = functional.to_dtype(original, torch.float32, scale=True)
    expected = functional.normalize(scaled, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
    assert torch.allclose(batch.images[1], expected)


@pytest.mark.parametrize("name", [name for name in dataset_names() if name not in ("digits", "ray")])
def test_a_set_that_is_absent_is_told_with_path_and_remedy(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound) as caught:
        open_dataset(DataSpec(name=name, root=str(tmp_path)), seed=0)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "data.root" in message
    assert ("data.download: true" in message) == (name not in ("imagenet", "image_folder", *RECORDS, *SAVED))
    assert "\n" not in message


def test_an_unknown_name_is_told_with_near_ones() -> None:
    with pytest.raises(ValidationError, match=r"'fashion-mnist'; did you mean fashion_mnist.*module:function"):
        DataSpec(name="fashion-mnist")


def test_four_arrays_of_the_users() -> None:
    dataset = open_dataset(DataSpec(name=f"{USERS}:four_arrays"), seed=0)
    assert (dataset.num_train, dataset.num_test, dataset.facts.classes) == (12, 8, 4)
    assert dataset.facts.inputs == (3, 9, 10)
    (batch,) = dataset.batches([(0, np.arange(12))])
    assert torch.allclose(batch.images.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(batch.images.std(dim=(0, 2, 3)), torch.ones(3), atol=1e-2)
    assert next(dataset.test_batches(3)).labels.tolist() == [0, 1, 2]


def test_constant_grey_images_of_the_users() -> None:
    dataset = open_dataset(DataSpec(name=f"{USERS}:grey_arrays"), seed=0)
    assert dataset.facts.inputs == (1, 5, 5)
    (batch,) = dataset.batches([(0, np.arange(4))])
    assert torch.allclose(batch.images, torch.zeros(4, 1, 5, 5), atol=1e-6)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", "raised KeyError: 'no column in somewhere'"),
        ("returns_nothing", "returned NoneType; it must return"),
        ("channels_last", "channels last"),
        ("negative_labels", "labels run from -1 to 1"),
        ("unseen_class", r"labels run from 0 to 2; they must be in 0\.\.1"),
        ("no_classes", "attribute `classes`"),
        (
            "one_pair",
            r"rows of \(2,\) and of \(\); .* two sets, \(train, test\), each of which is \(x, y\)",
        ),
        ("not_a_function", "has no function 'not_a_function'"),
        ("four_arrayz", "did you mean four_arrays"),
    ],
)
def test_mistakes_of_the_users_are_reported(function: str, words: str) -> None:
    with pytest.raises(UserCodeFailed, match=words):
        open_dataset(DataSpec(name=f"{USERS}:{function}", root="somewhere"), seed=0)


def test_the_last_frames_are_reported() -> None:
    with pytest.raises(UserCodeFailed) as caught:
        open_dataset(DataSpec(name=f"{USERS}:raises"), seed=0)
    last = str(caught.value).splitlines()[-1]
    assert "raise KeyError" in last
    assert "in inner" in str(caught.value)
    assert "user_code.py" not in str(caught.value)


def test_a_module_that_is_not_there_is_told_with_the_remedy() -> None:
    with pytest.raises(UserCodeFailed, match="'no_such_module' is not on the path; set `code`"):
        open_dataset(DataSpec(name="no_such_module:f"), seed=0)


def test_names_import_no_torch() -> None:
    code = (
        "import sys, trainers.data.names as d, trainers.models.names as m; d.dataset_names(); m.model_names();"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
