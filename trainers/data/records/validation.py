"""A part of the training examples as the validation set of data that bring a test set."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from trainers import user_code
from trainers.data.config import DataSpec
from trainers.data.examples import Arrays, Ragged, StreamedSource, measured
from trainers.data.records.columns import Columns
from trainers.data.records.objects import ObjectSource
from trainers.data.records.rows import brings_one, split

AnySource = Arrays | StreamedSource | ObjectSource | Columns


def with_validation(data: DataSpec, source: AnySource) -> AnySource:
    """The same source; where the spec gives such a part, these examples stand before those of the test set.

    Raises SpecRejected where the part is none or all of the examples, or where there is a validation set already.
    """
    if not data.carved:
        return source
    if source.num_validation:
        raise brings_one(data.name)
    if isinstance(source, Arrays):
        return _of_arrays(data, source)
    if isinstance(source, Columns):
        train, held_out = split(data, len(next(iter(source.train.values()))))
        test = {name: np.concatenate([column[held_out], source.test[name]]) for name, column in source.train.items()}
        kept = {name: column[train] for name, column in source.train.items()}
        return replace(source, train=kept, test=test, num_validation=len(held_out))
    train, held_out = split(data, len(source.train))
    both: Any = ConcatDataset([Subset(source.train, held_out.tolist()), source.test])
    return replace(source, train=Subset(source.train, train.tolist()), test=both, num_validation=len(held_out))


def _of_arrays(data: DataSpec, source: Arrays) -> Arrays:
    train, held_out = split(data, len(source.train_labels))
    images, others = source.train_images, source.test_images
    assert not isinstance(images, Ragged)  # nobody reads such at once
    assert not isinstance(others, Ragged)
    kept = images[train]
    return replace(
        source,
        train_images=kept,
        train_labels=source.train_labels[train],
        test_images=np.concatenate([images[held_out], others]),
        test_labels=np.concatenate([source.train_labels[held_out], source.test_labels]),
        normalisation=measured(kept) if user_code.is_user_name(data.name) else source.normalisation,
        num_validation=len(held_out),
    )
