"""The section `data` of a spec. Imports no torch."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.data.names import dataset_names
from trainers.section import Section, known


class DataSpec(Section):
    """Which examples are trained, where they are read, and how they are augmented."""

    name: str = "digits"
    """A dataset by name (`digits`, `mnist`, `fashion_mnist`, `cifar10`, `cifar100`, `imagenet`, `image_folder`, `text`,
    `csv`) or a function of your own as `module:function`."""

    root: str = "data"
    """The folder in torchvision's layout, or the file of `text` and `csv`; a relative one is taken from where the job
    is submitted."""

    download: bool = False
    """Whether a dataset that is not in `root` may be fetched from its home on the network."""

    random_crop: int = Field(default=0, ge=0, le=256)
    """Pixels of zero padding around an image before a crop of its own size is drawn; 0: no crop."""

    horizontal_flip: bool = False
    """Whether half of the images are mirrored, drawn anew for each example and epoch."""

    random_resized_crop: int = Field(default=0, ge=0, le=2048)
    """Side in pixels of a crop of random area (8 to 100 %) and aspect (3/4 to 4/3), resized; 0: none. Evaluation
    resizes to 256/224 of it and takes the centre."""

    resize: int = Field(default=0, ge=0, le=2048)
    """Side in pixels of the squares that images are resized to where `random_resized_crop` is 0: the short side to
    256/224 of it, then the centre. 0: images that all have one size keep it; those of folders get 224, or the short
    side of the first image where that is smaller."""

    loader_processes: int = Field(default=2, ge=0, le=64)
    """DataLoader processes a worker, for sets that do not fit in memory."""

    timeout_s: float = Field(default=300.0, gt=0)
    """The longest that one example may take to be read, in seconds, where examples are read while it trains. A process
    that takes longer is replaced, as one that hangs is; the log names the example."""

    on_error: Literal["fail", "skip"] = "fail"
    """What becomes of an example that cannot be read, of a set that is read one by one: the run fails and names it, or
    the example is skipped. A skipped one counts as used, and weighs nothing."""

    max_skipped: float = Field(default=0.01, ge=0)
    """How many training examples may be skipped before the run fails after all: below 1 a share of them, from 1 on a
    number."""

    memory_limit_bytes: int = Field(default=4 * 1024**3, ge=0)
    """Largest set, in bytes as uint8, that is held in the node's shared memory, photographs decoded; larger ones are
    streamed."""

    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many training examples; of folders of images, as many of every class, always the same ones;
    none: all of them."""

    tokens: Literal["bytes", "characters"] = "bytes"
    """Of `text`: what a token is. Bytes are read where they lie, however large the text is; characters are those that
    occur in it."""

    context: int = Field(default=256, ge=1, le=2**20)
    """Of `text`: T, the tokens of one window. An example is a window, and each token of it learns the next one."""

    target: str = ""
    """Of `csv`: the column that is learned."""

    validation: float = Field(default=0.1, gt=0, lt=1)
    """Of `text` and `csv`: the part that is kept for evaluation: the last of a text, random rows of a table, always the
    same ones."""

    @field_validator("resize")
    @classmethod
    def _has_one_side(cls, resize: int, info: ValidationInfo) -> int:
        if resize and info.data.get("random_resized_crop"):
            raise ValueError("random_resized_crop gives the side already; leave one of them out")
        return resize

    @field_validator("on_error")
    @classmethod
    def _is_read_one_by_one(cls, on_error: str, info: ValidationInfo) -> str:
        name = info.data.get("name", "")
        if on_error == "skip" and ":" not in name and name not in ("image_folder", "imagenet"):
            raise ValueError(
                f"skip is for sets that are read one by one, such as image_folder or one of your own; {name} is not"
            )
        return on_error

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return known(dataset_names(), name, "a dataset of your own")
