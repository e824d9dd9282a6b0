"""The datasets that have a name. Imports no torch, so that the service can list them."""

DATASETS: dict[str, str] = {
    "digits": "8x8 grey digits from scikit-learn, 10 classes, 1,437 training and 360 test images; no network",
    "mnist": "28x28 grey digits, 10 classes, 60,000 and 10,000 images",
    "fashion_mnist": "28x28 grey clothes, 10 classes, 60,000 and 10,000 images",
    "cifar10": "32x32 colour photographs, 10 classes, 50,000 and 10,000 images",
    "cifar100": "32x32 colour photographs, 100 classes, 50,000 and 10,000 images",
    "imagenet": "ILSVRC 2012, 1,000 classes; the folder holds the archives or what torchvision unpacked",
    "image_folder": "your own photographs: root/train/<class>/... and root/val/<class>/...",
    "text": "a text file, or a folder of them, as windows of bytes or characters",
    "csv": "a table with a line of names: numbers and categories, one column the target",
    "parquet": "the same in a Parquet file, or a folder of them",
    "hf": "a folder that the library datasets has saved to disk, also as hf:<path>",
    "webdataset": "tar shards of examples, also as webdataset:<path or pattern>",
    "ray": "a Ray Dataset: ray:<folder of Parquet files>, or ray:module:function that returns one",
}
"""Name and one line each."""

TABLES = ("csv", "parquet")
RECORDS = ("text", *TABLES)
"""Sets that are no images."""
TORCHVISION = ("mnist", "fashion_mnist", "cifar10", "cifar100", "imagenet", "image_folder")
"""Sets that torchvision reads."""
SAVED = ("hf", "webdataset", "ray")
"""Sets that other libraries have written or hold, of images or of anything else."""

NUM_TRAIN: dict[str, int] = {
    "digits": 1437,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "imagenet": 1_281_167,
}
"""Training examples of the sets whose size is fixed."""

IMAGES: dict[str, tuple[int, int, int, int]] = {
    "digits": (1, 8, 8, 10),
    "mnist": (1, 28, 28, 10),
    "fashion_mnist": (1, 28, 28, 10),
    "cifar10": (3, 32, 32, 10),
    "cifar100": (3, 32, 32, 100),
    "imagenet": (3, 224, 224, 1000),
}
"""C, H, W and classes of the sets whose images have a fixed size; ImageNet's as the models see them by default."""


def dataset_names() -> tuple[str, ...]:
    """Every name that `data.name` may hold besides `module:function`."""
    return tuple(DATASETS)
