"""Job specs: what is read, what is refused and where, and what --set does."""

import pytest

from service.errors import SpecInvalid
from service.jobs.fork import as_patch
from service.plain_yaml import load_yaml
from service.spec import SHORTHAND, JobSpec, parse_spec, read_spec
from service.sweeps.spec import parse_sweep
from trainers.errors import SpecRejected
from trainers.optim.compress.config import CompressSpec
from trainers.spec import EmaSpec, TrainSpec
from trainers.spec.spec_errors import forms_of


def pointers(text: str, *sets: str) -> list[str]:
    with pytest.raises(SpecInvalid) as refused:
        read_spec(text, list(sets))
    return [error.pointer for error in refused.value.errors]


def test_the_name_comes_from_algorithm_and_data() -> None:
    assert read_spec("algorithm: downpour\ndata: mnist").name == "downpour-mnist"
    assert read_spec("data: 'my.sets:letters'").name == "sync-my.sets-letters"
    assert read_spec("name: mine").name == "mine"


def test_the_run_knows_nothing_of_the_queue() -> None:
    spec = read_spec("{name: a, labels: {x: y}, priority: 3, algorithm: {name: downpour, num_push: 4}, epochs: 7}")
    assert type(spec.train) is TrainSpec
    assert spec.train.epochs == 7
    assert spec.train.algorithm == spec.algorithm


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "optimizer: {name: adagrad, momentum: 0.9}",
            "adagrad has no such field, which lars, momentum, muon and nesterov have; adagrad takes epsilon, ",
        ),
        (
            "algorithm: {name: sync, num_push: 2}",
            "sync has no such field, which downpour and mixed have; sync takes ",
        ),
        ("schedule: {name: constant, every: 2}", "there is no such field"),
        ("optimizer: {name: sgd, learning_rate: 2}", "there is no such field; did you mean lr?"),
        ("device: gpu\nworkers: {gpus: 1}", "there is no 'gpu'; did you mean cuda?"),
        ("data: MNIST", "there is no 'MNIST'; did you mean mnist"),
        ("model: mynet.MyNet", "there is no 'mynet.MyNet'; did you mean mynet:MyNet? "),
        ("algorithm: fsdp", ", sync"),
        ("job: {epochs: 3}\naxes: {seed: [0]}", "this is the spec of a sweep, not of a job: `millrace sweep`"),
    ],
)
def test_an_error_says_what_to_write(text: str, said: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        read_spec(text)
    assert said in refused.value.errors[0].message


def test_a_jobs_spec_is_known_where_a_sweeps_belongs() -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_sweep({"model": "mlp", "epochs": 3})
    assert [error.message for error in refused.value.errors] == [
        "this is the spec of a job: a sweep has it under `job`, and `axes` beside it; `millrace run` takes it"
    ]


@pytest.mark.parametrize("section", ["algorithm", "optimizer", "schedule"])
def test_no_error_offers_the_word_that_was_written(section: str) -> None:
    forms = forms_of((section,), JobSpec)
    words = set().union(*forms.values())
    for name, fields in forms.items():
        for word in words - fields:
            with pytest.raises(SpecInvalid) as refused:
                parse_spec({section: {"name": name, word: 1}})
            (message,) = [one.message for one in refused.value.errors if one.pointer == f"/{section}/{word}"]
            assert f"did you mean {word}" not in message
            assert f"{name} takes " in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("algorithm: {name: downpour, num_push: 4, max_staleness: 1}", ["/algorithm/max_staleness"]),
        ("workers: 0\nfoo: 1\nepochs: many", ["/workers/count", "/epochs", "/foo"]),
        ("name: a b", ["/name"]),
        ("labels: {'a b': c}", ["/labels"]),
        (f"labels: {{a: {'x' * 201}}}", ["/labels"]),
        ("priority: 101", ["/priority"]),
        ("[1, 2]", [""]),
        ("a: [", [""]),
        ("when: 2020-13-45", [""]),
        ("[" * 5000, [""]),
        ("!!python/object/apply:os.getcwd []", [""]),
    ],
)
def test_what_is_wrong_is_named(text: str, expected: list[str]) -> None:
    assert pointers(text) == expected


def test_set_overrides_whole_fields_parts_and_shorthands() -> None:
    spec = read_spec("algorithm: downpour\nepochs: 3", ["algorithm.num_push=4", "optimizer.lr=1e-3", "data.root=/d"])
    assert spec.algorithm.model_dump()["num_push"] == 4
    assert spec.algorithm.name == "downpour"
    assert (spec.optimizer.name, spec.optimizer.lr) == ("adagrad", 0.001), "downpour's own default"
    assert (spec.data.name, spec.data.root) == ("digits", "/d")
    spec = read_spec("workers: 3", ["workers.cpus=0.5", "labels.team=vision", "schedule={name: step, epochs: [1, 2]}"])
    assert (spec.workers.count, spec.workers.cpus, spec.labels) == (3, 0.5, {"team": "vision"})
    assert spec.schedule.model_dump()["epochs"] == (1.0, 2.0)
    assert read_spec("model: {weights: w.safetensors}", ["model.weights="]).model.weights is None
    assert read_spec("algorithm: {name: downpour, num_push: 4}", ["algorithm=sync"]).algorithm.name == "sync"


def test_set_to_null_is_what_null_in_the_file_is() -> None:
    """A section that may be left out is left out, and does not begin anew with its defaults."""
    text = "ema: {decay: 0.9}\nearly_stop: loss\nclip: {norm: 1}\ndata: {name: digits, limit: 100}"
    spec = read_spec(text, ["ema=null", "early_stop=~", "clip=", "data.limit=null"])
    assert (spec.ema, spec.early_stop, spec.clip, spec.data.limit) == (None, None, None, None)
    assert read_spec(text, ["ema=null", "ema.decay=0.8"]).ema == EmaSpec(decay=0.8)
    assert as_patch(["ema=null", "data.limit=null"]) == {"ema": None, "data": {"limit": None}}


@pytest.mark.parametrize("override", ["epochs", "=3", ".epochs=3", "a..b=3"])
def test_set_without_field_or_value_is_refused(override: str) -> None:
    assert pointers("epochs: 3", override) == [""]


def test_set_of_an_unknown_field_is_named() -> None:
    assert pointers("", "data.rot=/d") == ["/data/rot"]


@pytest.mark.parametrize(("section", "scalar"), [("workers", 3), ("batch", 16), ("ps", 4), ("model", "convnet")])
def test_the_shorthands_are_the_specs_own(section: str, scalar: object) -> None:
    spelt_out = {SHORTHAND.get(section, "name"): scalar}
    assert parse_spec({section: scalar}) == parse_spec({section: spelt_out})


@pytest.mark.parametrize("way", ["sign", "int8"])
def test_a_name_may_stand_for_the_section_in_which_only_that_is_true(way: str) -> None:
    fields = {"algorithm": "sync"}
    assert parse_spec(fields | {"compress": way}) == parse_spec(fields | {"compress": {way: True}})
    assert read_spec("algorithm: sync", [f"compress={way}"]).compress == CompressSpec.model_validate({way: True})


def test_every_field_says_what_it_is() -> None:
    schema = JobSpec.model_json_schema()
    parts = {"JobSpec": schema, **schema["$defs"]}
    silent = [
        f"{name}.{field}"
        for name, part in parts.items()
        for field, told in part.get("properties", {}).items()
        if not {"description", "const", "$ref"} & told.keys()  # a part says itself what it is
    ]
    assert silent == []


def test_yaml_of_nothing_is_a_spec_of_defaults() -> None:
    assert load_yaml("") == {}
    assert read_spec("").algorithm.name == "sync"


def test_numbers_are_what_everybody_takes_for_one() -> None:
    assert read_spec("optimizer: {name: sgd, lr: 1e-3}").optimizer.lr == 0.001
    assert read_spec("epochs: 5", ["optimizer.lr=2E-2"]).optimizer.lr == 0.02
    assert read_spec("workers: 2.0").workers.count == 2
    assert read_spec("model: {name: mlp, kwargs: {a: true, b: 1, c: x}}").model.kwargs == {"a": True, "b": 1, "c": "x"}


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("epochs: true", "/epochs"),
        ("epochs: '5'", "/epochs"),
        ("workers: '2'", "/workers"),
        ("batch: true", "/batch"),
        ("data: {download: 1}", "/data/download"),
        ("labels: {a/b: 1}", "/labels/a~1b"),
    ],
)
def test_a_value_of_another_kind_is_not_bent_to_fit(text: str, pointer: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        read_spec(text)
    assert [error.pointer for error in refused.value.errors] == [pointer]


def test_all_that_is_wrong_is_told_at_once() -> None:
    text = """
    algorithm: downpor
    optimizer: {name: momentum, learning_rate: 0.1}
    device: cpuu
    workers: {cuont: 2}
    clip: 1.0
    batch: "32"
    seed: true
    epochs: many
    """
    with pytest.raises(SpecInvalid) as refused:
        read_spec(text)
    assert {error.pointer: error.message for error in refused.value.errors} == {
        "/algorithm": "there is no 'downpor'; did you mean downpour?",
        "/optimizer/learning_rate": "there is no such field; did you mean lr?",
        "/device": "there is no 'cpuu'; did you mean cpu?",
        "/workers/cuont": "there is no such field; did you mean count?",
        "/clip": "this is a section, with fields of its own: norm, value",
        "/epochs": 'must be a whole number, but is "many"',
        "/batch": "must be a number, not a string",
        "/seed": "must be a number, not a boolean",
    }


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("learning_rate: 0.1", "optimizer.lr"),
        ("batch_size: 32", "batch"),
        ("epohcs: 3", "epochs"),
        ("prioritty: 3", "priority"),
        ("task: classificatio", "classification"),
        ("optimizer: momentun", "momentum"),
        ("schedule: cosin", "cosine"),
        ("model: alexnt", "alexnet"),
        ("data: mnst", "mnist"),
        ("elastic: {mode: fixd_batch}", "fixed_batch"),
    ],
)
def test_a_word_that_there_is_not_is_answered_with_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(SpecInvalid, match=f"did you mean.* {meant}"):
        read_spec(text)


def test_a_key_that_stands_twice_is_refused_and_one_that_is_merged_is_not() -> None:
    with pytest.raises(SpecInvalid, match="in line 3, column 1: `epochs` stands in line 1 already"):
        load_yaml("epochs: 1\nseed: 2\nepochs: 3\n")
    merged = "a: &a {x: 1, y: 2}\nb: &b\n  <<: *a\n  x: 3\nc:\n  <<: *b\n  y: 4\nd: *b\n"
    assert load_yaml(merged)["c"] == {"x": 3, "y": 4}


@pytest.mark.parametrize(
    ("workers", "count", "said"),
    [
        ({"count": 2}, 4, "1 to 2 of them, not 4; it has 2 virtual workers: for more, submit it with workers.virtual"),
        ({"count": 2, "max": 4}, 4, "it has 2 virtual workers"),
        ({"count": 2, "virtual": 8, "max": 3}, 4, "1 to 3 of them, not 4; see workers.max"),
        ({"count": 2, "min": 2}, 1, "2 to 2 of them, not 1; see workers.min"),
    ],
)
def test_how_many_workers_a_run_may_have_is_told_with_the_field_that_says_so(
    workers: dict[str, int], count: int, said: str
) -> None:
    with pytest.raises(SpecRejected) as refused:
        TrainSpec.model_validate({"workers": workers}).with_workers(count)
    assert said in str(refused.value)
