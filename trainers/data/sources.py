"""Where examples come from: scikit-learn, torchvision's own dataset classes, or a function of the user's."""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from trainers import user_code
from trainers.data.config import DataSpec
from trainers.data.draws import permutation
from trainers.data.examples import Arrays, Normalisation, Ragged, Source, StreamedSource, UInt8Array, checked_labels
from trainers.data.names import SAVED, TABLES
from trainers.data.photographs import are_files, labels_of
from trainers.data.records.columns import Columns
from trainers.data.records.hf import read_hf
from trainers.data.records.objects import ObjectSource
from trainers.data.records.ray_rows import OpenRows, read_ray
from trainers.data.records.table import read_table
from trainers.data.records.validation import with_validation
from trainers.data.records.webdataset import read_webdataset
from trainers.data.user import IMAGENET, read_user, streams
from trainers.errors import DataNotFound, SpecRejected


def read_any(data: DataSpec, open_rows: OpenRows | None = None) -> Source | ObjectSource | Columns:
    """The dataset that a spec names, read or opened.

    open_rows: The way to the rows of a Ray Dataset, where this process has one.

    Raises DataNotFound (with the path and the remedy), UserCodeFailed, or SpecRejected for an unknown name.
    """
    if data.name in TABLES:
        return read_table(data)
    if data.kind in SAVED:
        found = _saved(data, open_rows)
        if isinstance(found, Columns):
            return found
        return _limited(streams(data.name, *found, skips=data.on_error == "skip"), data.limit)
    readers: dict[str, Callable[[DataSpec], Source | ObjectSource | Columns]] = {
        "digits": _digits,
        "imagenet": _imagenet,
        "image_folder": _image_folder,
        **dict.fromkeys(_IN_MEMORY, _torchvision),
    }
    read = read_user if user_code.is_user_name(data.name) else readers[data.name]
    source = with_validation(data, read(data))
    return source if isinstance(source, Columns) else _limited(source, data.limit)


def _saved(data: DataSpec, open_rows: OpenRows | None) -> Columns | tuple[Any, ...]:
    """What another library has written or holds."""
    if data.kind == "ray":
        return read_ray(data, open_rows)
    return read_hf(data) if data.name == "hf" else read_webdataset(data)


def read_source(data: DataSpec) -> Source:
    """The images that a spec names.

    Raises as `read_any`; SpecRejected where they are no images.
    """
    source = read_any(data)
    if isinstance(source, Columns | ObjectSource):
        raise SpecRejected(f"data: {data.name} holds no images, which this needs; see the guide on data")
    return source


def _limited(source: Source | ObjectSource, limit: int | None) -> Source | ObjectSource:
    """Only the first `limit` training examples; of a set that is sorted by class, as folders are, random ones of every
    class, always the same."""
    if limit is None:
        return source
    if isinstance(source, Arrays):
        assert not isinstance(source.train_images, Ragged)  # nobody reads such at once
        return replace(source, train_images=source.train_images[:limit], train_labels=source.train_labels[:limit])
    chosen: Sequence[int] = range(min(limit, len(source.train)))
    if isinstance(source, StreamedSource) and are_files(source.train):
        labels = labels_of(source.train)
        assert labels is not None  # each file lies in the folder of its class
        chosen = _stratified(labels, limit)
    return replace(source, train=Subset(source.train, chosen))


def _stratified(labels: Any, count: int) -> list[int]:
    """So many examples, of each class as many as of any other, as far as there are."""
    order = permutation(0, 0, len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(labels)
    turns = np.concatenate([np.arange(size) for size in sizes])  # of each in its class
    return sorted(int(i) for i in by_class[np.argsort(turns, kind="stable")][:count])


def _digits(data: DataSpec) -> Arrays:
    """scikit-learn's digits, 0..16 stretched to 0..255; every fifth or so of each class is a test image.

    The split is fixed and does not depend on the seed of the run.
    """
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    # Read the file directly: importing scikit-learn takes seconds, longer than a test trains.
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", np.int64, delimiter=",")
    images = np.rint(rows[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)  # (1797, 1, 8, 8), 0..16 before
    labels = rows[:, -1]  # (1797,)
    order = permutation(0, 0, len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[by_class[np.linspace(0, len(labels) - 1, 360).astype(np.int64)]] = True  # evenly through the classes
    normalisation = Normalisation((0.3056,), (0.3763,))
    return Arrays(images[~is_test], labels[~is_test], images[is_test], labels[is_test], 10, normalisation)


@dataclass(frozen=True)
class _Known:
    """A dataset of torchvision that is held in memory."""

    class_name: str
    num_classes: int
    normalisation: Normalisation


_IN_MEMORY: dict[str, _Known] = {
    "mnist": _Known("MNIST", 10, Normalisation((0.1307,), (0.3081,))),
    "fashion_mnist": _Known("FashionMNIST", 10, Normalisation((0.2860,), (0.3530,))),
    "cifar10": _Known("CIFAR10", 10, Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "cifar100": _Known("CIFAR100", 100, Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))),
}


def _torchvision(data: DataSpec) -> Arrays:
    """MNIST, Fashion-MNIST, CIFAR-10 or CIFAR-100 through torchvision's class of the same name."""
    import torchvision.datasets

    known = _IN_MEMORY[data.name]
    dataset_class = getattr(torchvision.datasets, known.class_name)
    with _opening(data):
        train = dataset_class(data.root, train=True, download=data.download)
        test = dataset_class(data.root, train=False, download=data.download)
    return Arrays(
        _channels_first(train.data),
        checked_labels(train.targets, known.num_classes, data.name),
        _channels_first(test.data),
        checked_labels(test.targets, known.num_classes, data.name),
        known.num_classes,
        known.normalisation,
    )


def _channels_first(images: Any) -> UInt8Array:
    """(N, C, H, W) from torchvision's (N, H, W) or (N, H, W, C)."""
    array = np.asarray(images)
    return array[:, None] if array.ndim == 3 else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _imagenet(data: DataSpec) -> StreamedSource:
    """ILSVRC 2012 through torchvision's ImageNet; its archives cannot be downloaded without an account."""
    from torchvision.datasets import ImageNet

    with _opening(data, can_download=False):
        train, test = ImageNet(data.root, split="train"), ImageNet(data.root, split="val")
    return StreamedSource(train, test, len(train.classes), IMAGENET, one_size=False)


def _image_folder(data: DataSpec) -> StreamedSource:
    """root/train/<class>/*.jpg and root/val/<class>/*.jpg through torchvision's ImageFolder, or the folders in root
    that `data.validation` and `data.test` name."""
    from torchvision.datasets import ImageFolder

    usual = () if isinstance(data.validation, str) or (data.carved and data.test) else ("val",)
    folders = [Path(data.root) / name for name in ("train", *usual, *data.given_sets)]
    for folder in folders:
        if not folder.is_dir():
            raise _not_found(data, f"there is no folder {folder}", can_download=False)
    for folder in folders:
        _check_classes(folder)
    with _opening(data, can_download=False):
        train, *held_out = (ImageFolder(str(folder)) for folder in folders)
    for folder, part in zip(folders[1:], held_out, strict=True):
        if train.classes != part.classes:
            odd = sorted(set(train.classes) ^ set(part.classes))
            instance = ", ".join(odd[:3])
            raise SpecRejected(f"{data.root}: train and {folder.name} have different classes, for instance {instance}")
    test: Any = held_out[0] if len(held_out) == 1 else ConcatDataset(held_out)
    num_validation = len(test) - len(held_out[-1])
    return StreamedSource(train, test, len(train.classes), IMAGENET, False, num_validation)


def _check_classes(folder: Path) -> None:
    """Raises SpecRejected where a folder has no classes, or a class no image."""
    from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension

    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    if not classes:
        raise SpecRejected(f"{folder}: there are no folders in it; each class has one, with its images")
    for path in classes:
        names = (name for _, _, files in os.walk(path, followlinks=True) for name in files)
        if not any(has_file_allowed_extension(name, IMG_EXTENSIONS) for name in names):
            kinds = ", ".join(extension.removeprefix(".") for extension in IMG_EXTENSIONS)
            raise SpecRejected(f"{path}: no image ({kinds}) is in the folder of this class; add some, or remove it")


@contextmanager
def _opening(data: DataSpec, can_download: bool = True) -> Iterator[None]:
    """Turn what torchvision raises for missing files into DataNotFound; one process at a time downloads."""
    try:
        if data.download and can_download:
            Path(data.root).mkdir(parents=True, exist_ok=True)
            with open(Path(data.root) / ".download.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        else:
            yield
    except (RuntimeError, OSError) as error:  # torchvision has no error of its own; URLError is an OSError
        raise _not_found(data, str(error).split(". ")[0].strip() or repr(error), can_download) from error


def _not_found(data: DataSpec, cause: str, can_download: bool) -> DataNotFound:
    remedy = "set data.root to the folder that holds it"
    if can_download and not data.download:
        remedy += ", or data.download: true to fetch it"
    return DataNotFound(f"dataset {data.name} is not in {Path(data.root).absolute()} ({cause}); {remedy}")
