"""The section `data` of a spec. Imports no torch."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trainers.data.images.config import BY_ALPHA, MixSpec, RandAugmentSpec, RandomErasingSpec
from trainers.data.names import RECORDS, SAVED, TABLES, dataset_names
from trainers.section import Section, known

IS_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""`module:function`, which no path to a folder looks like."""

MIXED = ("mixup", "cutmix")
SEEN = ("random_crop", "horizontal_flip", "random_resized_crop", "resize")
VARIED = ("rand_augment", "random_erasing", *MIXED)

TENTH = 0.1
"""Held out where no set is named and none is brought."""
WRITTEN_OUT = {"download", "random_crop", "horizontal_flip", "random_resized_crop", "loader_processes", "limit"}
"""Fields that nobody gives together, and that a stored spec has with all others."""


class DataSpec(Section):
    """Which examples are trained, where they are read, and how they are augmented."""

    name: str = "digits"
    """A dataset by name (`digits`, `mnist`, `fashion_mnist`, `cifar10`, `cifar100`, `imagenet`, `image_folder`, `text`,
    `csv`, `parquet`, `hf`, `webdataset`, `ray`) or a function of your own as `module:function`, as
    `ray:module:function` where it returns a Ray Dataset."""

    root: str = "data"
    """The folder in torchvision's layout, or the file of `text`, `csv` and `parquet`, or a folder of such; a relative
    one is taken from where the job is submitted."""

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

    rand_augment: RandAugmentSpec | None = None
    """Operations of torchvision's RandAugment on each image after crop and mirror, drawn anew for each example and
    epoch; none: none."""

    random_erasing: RandomErasingSpec | None = None
    """A box of some images that is overwritten after they are normalised, as by torchvision's RandomErasing; none:
    they stay whole."""

    mixup: Annotated[MixSpec | None, BY_ALPHA] = None
    """Each image becomes a weighted mean with another of its minibatch, and its label likewise (Zhang et al. 2018);
    none: it stays itself. With `cutmix` too, each minibatch draws one of the two."""

    cutmix: Annotated[MixSpec | None, BY_ALPHA] = None
    """A box of each image comes from another of its minibatch, and as much of its label (Yun et al. 2019); none: the
    image stays itself."""

    loader_processes: int = Field(default=2, ge=0, le=64)
    """DataLoader processes a worker, for sets that do not fit in memory."""

    timeout_s: float = Field(default=300.0, gt=0)
    """The longest that one example may take to be read, in seconds, where examples are read one by one: while the
    dataset is opened, or while it trains. A process that takes longer is replaced, as one that hangs is; the log names
    the example."""

    on_error: Literal["fail", "skip"] = "fail"
    """What becomes of an example that cannot be used: the run fails and names it, or the example is skipped. Of a set
    that is read one by one a skipped one counts as used, and weighs nothing; rows of tables and arrays are left out
    when these are opened."""

    max_skipped: float = Field(default=0.01, ge=0)
    """How many training examples may be skipped before the run fails after all: below 1 a share of them, from 1 on a
    number."""

    memory_limit_bytes: int = Field(default=4 * 1024**3, ge=0)
    """Largest set, in bytes as uint8, that is held in the node's shared memory, photographs decoded; larger ones are
    streamed."""

    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many training examples; of folders of images, as many of every class, always the same ones;
    none: all of them."""

    shuffle: bool = True
    """Whether each epoch trains the examples in another random order, drawn from the seed; false: each trains them in
    the order of the data. Evaluations always go in that order."""

    tokens: Literal["bytes", "characters"] = "bytes"
    """Of `text`: what a token is. Bytes are read where they lie, however large the text is; characters are those that
    occur in it."""

    tokenizer: str | None = None
    """Of `text`: a file of the library `tokenizers`, as `tokenizer.json`, whose tokens are taken instead."""

    context: int = Field(default=256, ge=1, le=2**20)
    """Of `text`: T, the tokens of one window. An example is a window, and each token of it learns the next one."""

    target: str = ""
    """Of `csv` and `parquet`: the column that is learned."""

    columns: tuple[str, ...] = ()
    """Of `csv` and `parquet`: the columns that are read as inputs; none: all but the target."""

    categories: tuple[str, ...] = ()
    """Of `csv` and `parquet`: columns of numbers that stand for categories; the target too, if its numbers are labels.
    A column of words need not be named."""

    encoding: Literal["one_hot", "codes"] | None = None
    """Of `csv` and `parquet`: what a category becomes. `one_hot`: a 0 or 1 for each of its values; `codes`: the number
    of its value, behind all other columns, as embeddings take it. Left out, it is `codes` for the model `tabular`, and
    else `one_hot`."""

    validation: Annotated[float, Field(gt=0, lt=1)] | str | None = None
    """The part of the training examples that is kept for evaluation: the last of a text, random ones of other sets,
    always the same ones. Where the data bring a test set, that is evaluated once at the end. Or the set that is
    evaluated instead: another file or folder like `root`, of `hf` the name of a split, of `image_folder` that of a
    folder in `root`. None: a tenth, of data that bring no test set."""

    carve: bool = True
    """Whether the part in `validation` is kept also where the data bring a test set. False in specs of before this was
    so."""

    test: str | None = None
    """Likewise a set that is evaluated once at the end, apart from that which is evaluated while it trains. None: there
    is one such set, the test set, and it is evaluated all along."""

    @property
    def kind(self) -> str:
        """The name, without the function of a Ray Dataset."""
        return "ray" if self.ray_function else self.name

    @property
    def ray_function(self) -> str:
        """The `module:function` that returns a Ray Dataset; empty where none does."""
        return self.name.removeprefix("ray:") if self.name.startswith("ray:") else ""

    @model_validator(mode="before")
    @classmethod
    def _as_stored(cls, values: Any) -> Any:
        """A stored section from before `carve` holds a part that nobody need have given, and that was not taken where
        data bring a test set."""
        if not isinstance(values, dict) or "carve" in values or not values.keys() >= WRITTEN_OUT:
            return values
        part, name = values.get("validation"), values.get("name")
        if not isinstance(part, float) or name in RECORDS:
            return values
        is_saved = isinstance(name, str) and name.partition(":")[0] in SAVED
        return {**values, "carve": False} if is_saved and part != TENTH else {**values, "validation": None}

    @model_validator(mode="before")
    @classmethod
    def _has_its_path(cls, values: Any) -> Any:
        """`hf:PATH` is `hf` with that root; `ray:module:function` is a name and no path."""
        if not isinstance(values, dict) or not isinstance(values.get("name"), str):
            return values
        name, _, path = values["name"].partition(":")
        if name not in SAVED or not path or (name == "ray" and IS_FUNCTION.fullmatch(path)):
            return values
        if "root" in values:
            raise ValueError(f"the path stands in name and in root; give it once, as {values['name']}")
        return {**values, "name": name, "root": path}

    @field_validator("resize")
    @classmethod
    def _has_one_side(cls, resize: int, info: ValidationInfo) -> int:
        if resize and info.data.get("random_resized_crop"):
            raise ValueError("random_resized_crop gives the side already; leave one of them out")
        return resize

    @field_validator("validation", "test")
    @classmethod
    def _is_named(cls, given: float | str | None, info: ValidationInfo) -> float | str | None:
        name = info.data.get("name", "")
        if not isinstance(given, str) or (name in (*RECORDS, *SAVED, "image_folder") and name != "ray"):
            return given
        if ":" in name:
            raise ValueError(f"the sets of {name} are what it returns; have it return (train, validation, test)")
        raise ValueError(f"{name} has sets of its own; leave this out")

    @property
    def varied_by(self) -> tuple[str, ...]:
        """The sections that are given for images alone."""
        return tuple(name for name in VARIED if getattr(self, name) is not None)

    @property
    def seen_by(self) -> tuple[str, ...]:
        """The fields that say which part of an image is seen, where one is given. Of sets that have no images by their
        name they are only told to be in vain: specs may have them from before there were such sets."""
        return tuple(name for name in SEEN if getattr(self, name))

    @property
    def mixed_by(self) -> tuple[str, ...]:
        """Those of them that mix examples, and with them labels."""
        return tuple(name for name in self.varied_by if name in MIXED)

    @property
    def given_sets(self) -> tuple[str, ...]:
        """The sets that are named besides the training set; a test set is the last."""
        return tuple(path for path in (self.validation, self.test) if isinstance(path, str))

    @property
    def most_skipped(self) -> float | None:
        """`max_skipped` where examples may be skipped."""
        return self.max_skipped if self.on_error == "skip" else None

    @property
    def held_out(self) -> float:
        """The part of the data at `root` that is not trained, where it is all there is."""
        if self.validation is None:
            return TENTH
        return 0.0 if isinstance(self.validation, str) else self.validation

    @property
    def carved(self) -> float:
        """The part of the training examples that is validated though the data may bring a test set; 0.0: none."""
        return self.validation if self.carve and isinstance(self.validation, float) else 0.0

    @property
    def has_validation(self) -> bool | None:
        """Whether there is a validation set besides the test set; None where only the data tell it."""
        if ":" in self.name or self.name in SAVED:
            return None
        return self.test is not None or (self.carved > 0 and self.name not in RECORDS)

    @field_validator("on_error")
    @classmethod
    def _may_skip(cls, on_error: str, info: ValidationInfo) -> str:
        name = info.data.get("name", "")
        if on_error == "skip" and ":" not in name and name not in (*TABLES, *SAVED, "image_folder", "imagenet"):
            raise ValueError(f"skip is for tables, files that are read one by one and your own sets, not for {name}")
        return on_error

    @field_validator("tokenizer")
    @classmethod
    def _is_what_a_token_is(cls, tokenizer: str | None, info: ValidationInfo) -> str | None:
        if tokenizer is not None and info.data.get("tokens") == "characters":
            raise ValueError("a tokenizer says what a token is; leave tokens out, or the tokenizer")
        return tokenizer

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return known(dataset_names(), name, "a dataset of your own")
