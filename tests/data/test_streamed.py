"""Sets that do not fit in memory: the same examples, through processes that end."""

import multiprocessing
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2 import functional

from trainers.data.datasets import open_dataset
from trainers.data.examples import Normalisation, StreamedSource
from trainers.data.images.augmentation import Augmentation
from trainers.data.streamed import ImageHalf, StreamedDataset
from trainers.errors import DataNotFound, MillraceError, RunFailed, SpecRejected, UserCodeFailed
from trainers.spec import DataSpec

USERS = "tests.data.usersets"
Children = Callable[[], list[BaseProcess]]
PLAN = [(0, np.array([5, 3, 8])), (0, np.array([0])), (1, np.array([], dtype=np.int64)), (2, np.array([3, 9]))]


@pytest.fixture
def children() -> Children:
    """The processes of this test that have not ended; other tests keep some of their own."""
    before = {process.pid for process in multiprocessing.active_children()}
    return lambda: [process for process in multiprocessing.active_children() if process.pid not in before]


def test_streamed_and_in_memory_are_bit_equal() -> None:
    varied = {"rand_augment": {"ops": 2}, "random_erasing": {"probability": 0.5}, "mixup": 0.2, "cutmix": 1}
    spec = DataSpec(random_crop=1, horizontal_flip=True, random_resized_crop=10, loader_processes=0, **varied)
    with (
        open_dataset(spec, 1) as held,
        open_dataset(spec.model_copy(update={"memory_limit_bytes": 0}), 1) as streamed,
    ):
        assert held.fits_in_memory
        assert not streamed.fits_in_memory
        assert streamed.facts.inputs == held.facts.inputs == (1, 10, 10)
        for mine, theirs in zip(streamed.batches(PLAN), held.batches(PLAN), strict=True):
            assert torch.equal(mine.images, theirs.images)
            assert torch.equal(mine.labels, theirs.labels)
            assert (mine.epoch, mine.examples.tolist()) == (theirs.epoch, theirs.examples.tolist())
        for mine, theirs in zip(streamed.test_batches(100), held.test_batches(100), strict=True):
            assert torch.equal(mine.images, theirs.images)


def test_processes_serve_plan_after_plan_and_end(photographs: Path, children: Children) -> None:
    spec = DataSpec(name="image_folder", root=str(photographs), random_resized_crop=32, loader_processes=2)
    state = torch.random.get_rng_state()
    with open_dataset(spec, 0) as dataset, open_dataset(spec.model_copy(update={"loader_processes": 0}), 0) as here:
        assert (dataset.num_train, dataset.num_test, dataset.facts.classes) == (12, 4, 2)
        assert dataset.facts.inputs == (3, 32, 32)
        long = [(0, np.array([i % 12])) for i in range(40)]
        abandoned = dataset.batches(long)
        for _ in range(3):
            next(abandoned)
        pids = {process.pid for process in children()}
        assert len(pids) == 2
        plan = [(0, np.arange(12)), (1, np.array([11, 0])), (0, np.array([4]))]
        for mine, theirs in zip(dataset.batches(plan), here.batches(plan), strict=True):
            assert torch.equal(mine.images, theirs.images)
            assert torch.equal(mine.labels, theirs.labels)
        assert {process.pid for process in children()} == pids
        with pytest.raises(AssertionError, match="another plan"):
            next(abandoned)
    assert not children()
    dataset.close()
    assert torch.equal(state, torch.random.get_rng_state())
    with pytest.raises(AssertionError, match="after close"):
        next(dataset.batches(plan))


def test_a_killed_process_fails_the_run(children: Children) -> None:
    with open_dataset(DataSpec(memory_limit_bytes=0, loader_processes=1), 0) as dataset:
        batches = dataset.batches((0, np.array([i])) for i in range(100))
        next(batches)
        (process,) = children()
        with suppress(RuntimeError):  # torch hears of the death by a signal and raises wherever that finds us
            process.kill()
            process.join()
        with pytest.raises(RunFailed, match="a data loading process ended"):
            list(batches)
        running: Any = dataset._loaders[True]._running  # type: ignore[attr-defined]
        running._workers_done_event._cond.acquire()  # as if it had died in the middle of a look at the event
    assert not children()


def test_a_dataset_is_closed_after_one_of_its_processes_was_killed(children: Children) -> None:
    """The error refers to the loader, so that its other processes have not ended by themselves."""
    with pytest.raises(RunFailed, match="a data loading process ended"):  # noqa: SIM117, PT012
        with open_dataset(DataSpec(memory_limit_bytes=0, loader_processes=2), 0) as dataset:
            batches = dataset.batches((0, np.array([i])) for i in range(1000))
            next(batches)
            with suppress(RuntimeError):
                children()[0].kill()
            list(batches)
    assert not children()


def test_a_killed_process_that_does_not_count_as_dead_yet_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up(_: object) -> None:
        raise ConnectionResetError

    with open_dataset(DataSpec(memory_limit_bytes=0, loader_processes=1), 0) as dataset:
        monkeypatch.setattr("multiprocessing.resource_sharer._resource_sharer.get_connection", hang_up)
        with pytest.raises(RunFailed, match="a data loading process ended"):
            next(dataset.batches([(0, np.array([0]))]))


def test_image_folder_is_torchvisions_and_evaluation_takes_the_centre(photographs: Path) -> None:
    spec = DataSpec(name="image_folder", root=str(photographs), random_resized_crop=24, loader_processes=0)
    with open_dataset(spec, 0) as dataset:
        (batch,) = dataset.test_batches(100)
        originals = ImageFolder(str(photographs / "val"))
        assert batch.labels.tolist() == originals.targets == [0, 0, 1, 1]
        image = functional.pil_to_tensor(originals[2][0])
        centre = functional.center_crop(functional.resize(image, [27], antialias=True), [24, 24])
        scaled = functional.to_dtype(centre, torch.float32, scale=True)
        assert torch.allclose(
            batch.images[2], functional.normalize(scaled, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        )


def test_photographs_have_a_default_size_which_enlarges_nothing(photographs: Path) -> None:
    spec = DataSpec(name="image_folder", root=str(photographs), loader_processes=0)
    first = photographs / "train" / "cat" / "0.png"
    for size, side in (((300, 250), 224), ((70, 50), 50)):
        Image.new("RGB", size).save(first)
        with open_dataset(spec, 0) as dataset:
            assert dataset.facts.inputs == (3, side, side)
            assert next(dataset.batches([(0, np.array([1, 2]))])).images.shape == (2, 3, side, side)
    with open_dataset(spec.model_copy(update={"resize": 300}), 0) as dataset:
        assert dataset.facts.inputs == (3, 300, 300)
    with pytest.raises(ValidationError, match="leave one of them out"):
        DataSpec(random_resized_crop=8, resize=9)


def test_images_that_have_the_size_keep_their_pixels(photographs: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for half in ("train", "val"):
        for path in (photographs / half).glob("*/*.png"):
            Image.fromarray(pixels).save(path)
    spec = DataSpec(name="image_folder", root=str(photographs), loader_processes=0)
    with open_dataset(spec, 0) as dataset:
        assert isinstance(dataset, StreamedDataset)
        (loaded,) = [dataset._train[(0, np.array([7]))]]
        assert not isinstance(loaded, MillraceError)
        assert torch.equal(loaded.data[0][0], torch.from_numpy(pixels).permute(2, 0, 1))


def test_halves_with_different_classes_are_refused(photographs: Path) -> None:
    (photographs / "val" / "dog").rename(photographs / "val" / "wolf")
    with pytest.raises(SpecRejected, match="different classes, for instance dog, wolf"):
        open_dataset(DataSpec(name="image_folder", root=str(photographs)), 0)


def test_a_photograph_that_cannot_be_read_is_named(photographs: Path) -> None:
    (photographs / "train" / "cat" / "3.png").write_bytes(b"not a photograph")
    with (
        open_dataset(DataSpec(name="image_folder", root=str(photographs), loader_processes=0), 0) as dataset,
        pytest.raises(RunFailed, match=r"training example 3 \(.*train/cat/3\.png\) cannot be read: "),
    ):
        next(dataset.batches([(0, np.array([3]))]))


def test_what_cannot_be_read_in_the_test_half_is_found_before_training(photographs: Path) -> None:
    first = min((photographs / "val" / "cat").iterdir())
    first.write_bytes(b"not a photograph")
    with pytest.raises(RunFailed, match=rf"test example 0 \({first}\) cannot be read: "):
        open_dataset(DataSpec(name="image_folder", root=str(photographs)), 0)


def test_a_class_without_images_is_named_with_its_half(photographs: Path) -> None:
    for photograph in (photographs / "val" / "cat").iterdir():
        photograph.rename(photograph.with_suffix(".txt"))
    with pytest.raises(SpecRejected, match=r"val/cat: no image \(jpg, jpeg, png, .* is in the folder of this class"):
        open_dataset(DataSpec(name="image_folder", root=str(photographs)), 0)
    shutil.rmtree(photographs / "train")
    with pytest.raises(DataNotFound, match=r"there is no folder .*train"):
        open_dataset(DataSpec(name="image_folder", root=str(photographs)), 0)
    (photographs / "train").mkdir()
    with pytest.raises(SpecRejected, match="train: there are no folders in it"):
        open_dataset(DataSpec(name="image_folder", root=str(photographs)), 0)


def test_a_limit_takes_as_many_examples_of_every_class(photographs: Path) -> None:
    spec = DataSpec(name="image_folder", root=str(photographs), loader_processes=0, limit=5, random_resized_crop=8)
    for _ in range(2):
        with open_dataset(spec, 0) as dataset:
            (batch,) = dataset.batches([(0, np.arange(5))])
            assert sorted(batch.labels.tolist()) == [0, 0, 0, 1, 1]


def test_map_style_datasets_of_the_users(children: Children) -> None:
    spec = DataSpec(name=f"{USERS}:maps", loader_processes=1)  # not picklable: opened again in the process
    with open_dataset(spec, 0) as dataset:
        assert (dataset.num_train, dataset.num_test, dataset.facts.classes) == (30, 9, 3)
        assert dataset.facts.inputs == (3, 8, 8)
        assert [batch.labels.tolist() for batch in dataset.batches([(0, np.array([4, 29]))])] == [[1, 2]]
    assert not children()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("wrong_label", r"the label of example 2 is 3, not in 0\.\.2"),
        (
            "broken_map",
            r"example 1, raised ValueError: the sensor was off at 1\n  File .*usersets\.py.* in __getitem__",
        ),
    ],
)
def test_mistakes_in_the_users_examples_are_reported(function: str, words: str) -> None:
    with (
        open_dataset(DataSpec(name=f"{USERS}:{function}", loader_processes=0), 0) as dataset,
        pytest.raises(UserCodeFailed, match=words),
    ):
        list(dataset.batches([(0, np.array([0])), (0, np.array([1] if function == "broken_map" else [2]))]))


def test_a_loader_whose_parent_died_while_it_started_ends() -> None:
    """It has ended by the time that the loader looks."""
    with subprocess.Popen(["true"]) as gone:
        pass
    end = "from trainers.data.loading.processes import _end_with_parent as end"
    code = end + "; import time; end({}, 0); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code.format(gone.pid)]) as loader:
        assert loader.wait(120) == 1


class Hangs:
    """Images, of which one is not read before it is let go."""

    classes = ("a", "b")

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        if i == 5:
            self.begun.set()
            self.may_go_on.wait()
        return np.full((1, 4, 4), i, np.uint8), i % 2


@pytest.mark.parametrize("training", [True, False])
def test_the_example_that_is_being_read_is_known_meanwhile(training: bool) -> None:
    """That is by what one that hangs is found, of either half."""
    held = Hangs()
    source = StreamedSource(held, held, 2, Normalisation((0.5,), (0.5,)), one_size=True)
    spec = DataSpec(name=f"{USERS}:x", loader_processes=0)
    train, test = (ImageHalf(spec, source, Augmentation(seed=0), half) for half in (True, False))
    with StreamedDataset(train, test, train.facts, torch.device("cpu")) as dataset:
        batches = dataset.batches([(0, np.array([3, 5]))]) if training else dataset.test_batches(8)
        reader = threading.Thread(target=lambda: list(batches))
        assert dataset.reading() is None
        reader.start()
        assert held.begun.wait(120)
        found = dataset.reading()
        held.may_go_on.set()
        reader.join()
        assert found is not None
        assert found.example == 5
        assert dataset.reading() is None
