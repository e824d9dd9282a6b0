"""Where examples come from: scikit-learn, torchvision's own dataset classes, or a function of the user's."""

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainers import usercode
from trainers.data.batches import Normalisation
from trainers.data.draws import Int64Array, permutation
from trainers.data.names import dataset_names
from trainers.errors import DataNotFound, SpecRejected, UserCodeFailed
from trainers.spec import DataSpec

UInt8Array = npt.NDArray[np.uint8]

IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
GREY = Normalisation((0.449,), (0.226,))
"""ImageNet's numbers averaged over its channels: for streamed grey images, which nobody has counted."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """A whole set, held in memory."""

    train_images: UInt8Array  # (N, C, H, W)
    train_labels: Int64Array  # (N,)
    test_images: UInt8Array
    test_labels: Int64Array
    num_classes: int
    normalisation: Normalisation

    @property
    def num_bytes(self) -> int:
        """Bytes of all images as uint8."""
        return self.train_images.nbytes + self.test_images.nbytes


@dataclass(frozen=True, eq=False)
class Streams:
    """Two torch map-style datasets of (image, label), read example by example."""

    train: Any
    test: Any
    num_classes: int
    normalisation: Normalisation


Source = Arrays | Streams


def read_source(data: DataSpec) -> Source:
    """The dataset that a spec names, read or opened.

    Raises DataNotFound (with the path and the remedy), UserCodeFailed, or SpecRejected for an unknown name.
    """
    if usercode.is_user_name(data.name):
        return _limited(_user(data), data.limit)
    readers: dict[str, Callable[[DataSpec], Source]] = {
        "digits": _digits,
        "imagenet": _imagenet,
        "image_folder": _image_folder,
        **dict.fromkeys(_TORCHVISION, _torchvision),
    }
    if data.name not in readers:
        raise usercode.unknown("dataset", data.name, dataset_names())
    return _limited(readers[data.name](data), data.limit)


def _limited(source: Source, limit: int | None) -> Source:
    """Only the first `limit` training examples."""
    if limit is None or limit >= len(source.train_labels if isinstance(source, Arrays) else source.train):
        return source
    if isinstance(source, Streams):
        from torch.utils.data import Subset

        return Streams(Subset(source.train, range(limit)), source.test, source.num_classes, source.normalisation)
    return Arrays(
        source.train_images[:limit],
        source.train_labels[:limit],
        source.test_images,
        source.test_labels,
        source.num_classes,
        source.normalisation,
    )


def _digits(data: DataSpec) -> Arrays:
    """scikit-learn's digits: 0..16 stretched to 0..255, every fifth or so of each class is a test image.

    The split is one of the project, always the same, whatever the seed of the run.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)  # (1797, 64) float64 in 0..16, (1797,)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    order = permutation(0, 0, len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    test = np.linspace(0, len(labels) - 1, 360).round().astype(np.int64)  # evenly through the classes: stratified
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[by_class[test]] = True
    labels = labels.astype(np.int64)
    return Arrays(
        images[~is_test], labels[~is_test], images[is_test], labels[is_test], 10, Normalisation((0.3053,), (0.3762,))
    )


@dataclass(frozen=True)
class _Known:
    """A set of torchvision's that lies in memory."""

    class_name: str
    num_classes: int
    normalisation: Normalisation


_TORCHVISION: dict[str, _Known] = {
    "mnist": _Known("MNIST", 10, Normalisation((0.1307,), (0.3081,))),
    "fashion_mnist": _Known("FashionMNIST", 10, Normalisation((0.2860,), (0.3530,))),
    "cifar10": _Known("CIFAR10", 10, Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "cifar100": _Known("CIFAR100", 100, Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))),
}


def _torchvision(data: DataSpec) -> Arrays:
    """MNIST, Fashion-MNIST, CIFAR-10 or CIFAR-100 through torchvision's class of the same name."""
    import torchvision.datasets

    known = _TORCHVISION[data.name]
    dataset_class = getattr(torchvision.datasets, known.class_name)
    with _opening(data):
        train = dataset_class(data.root, train=True, download=data.download)
        test = dataset_class(data.root, train=False, download=data.download)
    return Arrays(
        _channels_first(train.data),
        _labels(train.targets, known.num_classes, data.name),
        _channels_first(test.data),
        _labels(test.targets, known.num_classes, data.name),
        known.num_classes,
        known.normalisation,
    )


def _channels_first(images: Any) -> UInt8Array:
    """(N, C, H, W) from torchvision's (N, H, W) or (N, H, W, C)."""
    array = np.asarray(images)
    return array[:, None] if array.ndim == 3 else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _imagenet(data: DataSpec) -> Streams:
    """ILSVRC 2012 through torchvision's ImageNet; its archives cannot be downloaded without an account."""
    from torchvision.datasets import ImageNet

    with _opening(data, can_download=False):
        train, test = ImageNet(data.root, split="train"), ImageNet(data.root, split="val")
    return Streams(train, test, len(train.classes), IMAGENET)


def _image_folder(data: DataSpec) -> Streams:
    """root/train/<class>/*.jpg and root/val/<class>/*.jpg through torchvision's ImageFolder."""
    from torchvision.datasets import ImageFolder

    folders = [Path(data.root) / "train", Path(data.root) / "val"]
    for folder in folders:
        if not folder.is_dir():
            raise _not_found(data, f"there is no folder {folder}", can_download=False)
    with _opening(data, can_download=False):
        train, test = (ImageFolder(str(folder)) for folder in folders)
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))
        raise SpecRejected(f"{data.root}: train and val have different classes, for instance {', '.join(odd[:3])}")
    return Streams(train, test, len(train.classes), IMAGENET)


@contextmanager
def _opening(data: DataSpec, can_download: bool = True) -> Iterator[None]:
    """Whatever torchvision raises for files that are absent becomes DataNotFound; one process at a time downloads."""
    try:
        if data.download and can_download:
            Path(data.root).mkdir(parents=True, exist_ok=True)
            with open(Path(data.root) / ".download.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        else:
            yield
    except (RuntimeError, OSError) as error:  # torchvision has no error of its own; URLError is an OSError
        raise _not_found(data, str(error).splitlines()[0] if str(error) else repr(error), can_download) from error


def _not_found(data: DataSpec, cause: str, can_download: bool) -> DataNotFound:
    remedy = "set data.root to the folder that holds it"
    if can_download and not data.download:
        remedy += ", or data.download: true to fetch it"
    return DataNotFound(f"dataset {data.name} is not in {Path(data.root).absolute()} ({cause}); {remedy}")


def _user(data: DataSpec) -> Source:
    """What the user's function returns for `root`: four arrays, or two map-style datasets."""
    returned = usercode.call(data.name, root=data.root)
    parts: Sequence[Any] = returned if isinstance(returned, tuple | list) else ()
    if len(parts) == 4:
        return _user_arrays(data.name, parts)
    if len(parts) == 2 and all(hasattr(part, "__getitem__") and hasattr(part, "__len__") for part in parts):
        return _user_streams(data.name, *parts)
    raise UserCodeFailed(
        f"{data.name} returned {type(returned).__name__}; it must return (train_images, train_labels, test_images, "
        "test_labels) or two datasets with __getitem__ and __len__"
    )


def _user_arrays(name: str, parts: Sequence[Any]) -> Arrays:
    """Four arrays of the user's, checked; the classes are 0 to the largest training label."""
    train_images, test_images = _images(parts[0], name), _images(parts[2], name)
    if train_images.shape[1:] != test_images.shape[1:]:
        raise UserCodeFailed(
            f"{name}: training images are {train_images.shape[1:]}, test images {test_images.shape[1:]}"
        )
    if not len(train_images) or not len(test_images):
        raise UserCodeFailed(
            f"{name}: {len(train_images)} training and {len(test_images)} test images; both are needed"
        )
    train_labels = _labels(parts[1], None, name)
    num_classes = int(train_labels.max(initial=0)) + 1
    test_labels = _labels(parts[3], num_classes, name)
    if len(train_labels) != len(train_images) or len(test_labels) != len(test_images):
        raise UserCodeFailed(f"{name}: there must be one label for each image")
    return Arrays(train_images, train_labels, test_images, test_labels, num_classes, _measured(train_images))


def _user_streams(name: str, train: Any, test: Any) -> Streams:
    """Two map-style datasets of the user's; the number of classes comes from `classes` or `targets`."""
    if hasattr(train, "classes"):
        num_classes = len(train.classes)
    elif hasattr(train, "targets"):
        num_classes = int(max(train.targets)) + 1
    else:
        raise UserCodeFailed(
            f"{name}: give the training set an attribute `classes` (their names) or `targets` (labels)"
        )
    if not len(train) or not len(test):
        raise UserCodeFailed(f"{name}: {len(train)} training and {len(test)} test examples; both are needed")
    from trainers.data.streamed import image_tensor

    channels = image_tensor(train[0][0], name).shape[0]
    return Streams(train, test, num_classes, GREY if channels == 1 else IMAGENET)


def _images(images: Any, name: str) -> UInt8Array:
    """(N, C, H, W) uint8, from (N, C, H, W) or (N, H, W)."""
    array = np.asarray(images)
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise UserCodeFailed(
            f"{name}: images are {array.dtype} of shape {array.shape}; they must be uint8 of shape (N, C, H, W) or "
            "(N, H, W) (they are normalised while training)"
        )
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[1] > 4 and array.shape[3] in (1, 3):
        raise UserCodeFailed(f"{name}: images of shape {array.shape} have their channels last; transpose(0, 3, 1, 2)")
    return array


def _labels(labels: Any, num_classes: int | None, name: str) -> Int64Array:
    """(N,) int64, each in 0..num_classes - 1 (None: not negative)."""
    array = np.asarray(labels)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise UserCodeFailed(f"{name}: labels are {array.dtype} of shape {array.shape}; they must be integers, (N,)")
    array = array.astype(np.int64)
    highest = array.max(initial=0) if num_classes is None else num_classes - 1
    if len(array) and (array.min() < 0 or array.max() > highest):
        raise UserCodeFailed(f"{name}: labels run from {array.min()} to {array.max()}; they must be in 0..{highest}")
    return array


def _measured(images: UInt8Array) -> Normalisation:
    """Mean and deviation of each channel, counted by pixel value, so that no float copy of the set is made."""
    levels = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = np.zeros(256, dtype=np.int64)
        for part in _parts(images):
            counts += np.bincount(part[:, channel].ravel(), minlength=256)
        share = counts / counts.sum()
        mean = float((share * levels).sum())
        means.append(mean)
        deviations.append(float(np.sqrt((share * (levels - mean) ** 2).sum())) or 1.0)
    return Normalisation(tuple(means), tuple(deviations))


def _parts(images: UInt8Array, size: int = 4096) -> Iterator[UInt8Array]:
    for start in range(0, len(images), size):
        yield images[start : start + size]
