"""How a spec asks for images that are varied and mixed, and what is refused with what would do."""

import pytest
from pydantic import ValidationError

from trainers.data.datasets import open_dataset
from trainers.errors import SpecRejected
from trainers.spec import DataSpec, TrainSpec
from trainers.spec.recipe import explain


def test_alpha_alone_may_stand_for_its_section_and_a_spec_reads_itself() -> None:
    spec = TrainSpec.model_validate({"data": {"name": "mnist", "mixup": 0.2, "cutmix": {"alpha": 1}}})
    assert (spec.data.mixup.alpha, spec.data.cutmix.alpha) == (0.2, 1.0)
    assert TrainSpec.model_validate(spec.model_dump()) == spec
    assert TrainSpec.model_validate(TrainSpec().model_dump(mode="json")).data.varied_by == ()


@pytest.mark.parametrize(
    ("data", "more", "why"),
    [
        ({"name": "csv", "mixup": 0.2}, {}, "mixup: for images with labels, not for csv"),
        ({"name": "text", "rand_augment": {}}, {}, "rand_augment: for images with labels, not for text"),
        ({"cutmix": 1.0}, {"task": "transformers"}, "cutmix: .* two labels, which transformers does not take"),
        ({"mixup": 0.2, "cutmix": 1.0}, {"algorithm": "hybrid"}, "mixup and cutmix: .* hybrid divides the classes"),
        ({"mixup": 0}, {}, "greater than 0"),
        ({"mixup": {}}, {}, "alpha"),
        ({"rand_augment": {"magnitude": 31}}, {}, "30"),
        ({"random_erasing": {"scale": [0.5, 0.2]}}, {}, "scale is .* the smaller one first"),
        ({"random_erasing": {"ratio": [0, 2]}}, {}, "ratio is .* above 0"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_read(data: dict, more: dict, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        TrainSpec.model_validate({"data": {"name": "digits"} | data, **more})


def test_data_that_turn_out_to_be_no_images_are_refused_when_they_are_opened() -> None:
    with pytest.raises(SpecRejected, match=r"data.mixup: for images with labels, and tests.data.usersets:vectors"):
        open_dataset(DataSpec(name="tests.data.usersets:vectors", mixup=0.2), 0)
    with pytest.raises(SpecRejected, match=r"data.horizontal_flip: for images with labels, .*words gives"):
        open_dataset(DataSpec(name="tests.data.usersets:words", horizontal_flip=True), 0)


def test_hybrid_takes_what_varies_images_only() -> None:
    TrainSpec.model_validate({"algorithm": "hybrid", "data": {"name": "digits", "random_erasing": {}}})


def test_explain_names_each_with_its_formula_and_source() -> None:
    data = {"name": "digits", "mixup": 0.2, "cutmix": 1.0, "rand_augment": {"magnitude": 7}, "random_erasing": {}}
    found = explain(TrainSpec.model_validate({"data": data}), 1437).quantities
    told = {name: (part.value, part.source) for name, part in found.items() if name in data}
    assert told == {
        "rand_augment": (7, "Cubuk et al. 2020"),
        "random_erasing": (0.5, "Zhong et al. 2020"),
        "mixup": (0.2, "Zhang et al. 2018"),
        "cutmix": (1.0, "Yun et al. 2019"),
    }
    assert "draws one of mixup and cutmix" in found["mixup"].formula
    assert not set(data) & set(explain(TrainSpec(), 1437).quantities) - {"name"}
