"""`millrace profile`: what layers cost, counted in a model or timed on this machine's devices, and what a step does."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from api.cli.actions.specs import read_job
from api.cli.context import BAD_INPUT
from api.cli.display import wide_console
from service import (
    CostShare,
    Images,
    JobSpec,
    MillraceError,
    ModelCost,
    NeededMemory,
    StepProfile,
    TimingPlan,
    Timings,
    images_of,
    needed_memory,
    size_words,
)


@dataclass(frozen=True)
class ModelRequest:
    """`millrace profile --model` with its options."""

    model: str
    """A name, or a spec's file."""
    sets: list[str]
    image: str | None
    classes: int | None


def print_model(request: ModelRequest, as_json: bool) -> None:
    """Count a model's layers and print them, or end with exit status 2."""
    is_file = Path(request.model).is_file() or Path(request.model).suffix in (".yaml", ".yml", ".json")
    spec = read_job(Path(request.model), request.sets) if is_file else _named(request)
    with _refusing():
        cost = _cost(request, spec, is_file)
    if is_file:
        cost = cost.model_copy(update={"memory": needed_memory(spec.train, cost)})
    if as_json:
        typer.echo(cost.model_dump_json())
        return
    _show(_layers(cost), _kinds(cost))
    if cost.memory is not None:
        say_memory(cost.memory, spec)


def count_memory(spec: JobSpec) -> NeededMemory:
    """What a worker of a spec needs. Ends with exit status 2 where the model cannot be counted."""
    with _refusing():
        return needed_memory(spec.train, _cost(ModelRequest("", [], None, None), spec, is_file=True))


def say_memory(memory: NeededMemory, spec: JobSpec) -> None:
    """In one sentence."""
    vectors, activations = size_words(memory.vectors), size_words(memory.activations)
    typer.echo(f"\nA worker needs at least {vectors} for {memory.held}, and {activations} for")
    most = " at most" if spec.model.checkpoint_activations else ""
    put_out = f"what the layers put out for {spec.batch.per_worker} examples{most}"
    typer.echo(f"{put_out}, beside data and the process itself.")


def _cost(request: ModelRequest, spec: JobSpec, is_file: bool) -> ModelCost:
    """For images of a known shape without data; else the spec's data are opened."""
    from service import profile_model, profile_spec

    options = [name for name, value in (("--image", request.image), ("--classes", request.classes)) if value]
    known = images_of(spec.model, spec.data if is_file else None)
    if spec.task.name != "classification" or (known is None and not options):
        if options:
            _refuse(f"{options[0]}: the data tell what task {spec.task.name} learns from; leave it out")
        return profile_spec(spec.train)
    if known is None and len(options) == 1:
        _refuse(f"{options[0]}: {spec.data.name} does not tell the rest; give --image and --classes, or neither")
    shape, classes = (known.shape, known.classes) if known else (None, None)
    shape, classes = _shape(request.image) if request.image else shape, request.classes or classes
    assert shape is not None
    assert classes is not None
    images, train = Images(shape=shape, classes=classes), spec.train
    return profile_model(spec.model, images, spec.code, train.optimizer.groups, train.algorithm, train.workers.count)


def print_timings(plan: TimingPlan, plot: Path, as_json: bool) -> None:
    """Time the two layers, print and draw it, or end with exit status 2."""
    if not plot.parent.is_dir():
        _refuse(f"--plot: there is no folder {plot.parent}")
    from service import plot_timings, time_layers

    with _refusing(), _bar() as on_pass:
        timings = time_layers(plan, on_pass)
    try:
        plot_timings(timings, plot)
    except OSError as error:
        _refuse(f"--plot: {plot} cannot be written: {error.strerror}")
    if as_json:
        typer.echo(json.dumps({**timings.model_dump(mode="json"), "plot": str(plot)}))
        return
    threads = f"{timings.threads} thread{'s' if timings.threads > 1 else ''}"
    typer.echo(f"float32, mean and standard deviation of {plan.repeats} forward passes; {threads} on the CPU")
    _show(_times(timings, "convolution"), _times(timings, "fully_connected"), _slopes(timings))
    typer.echo(f"The plot is in {plot}")


def timed_here(spec: JobSpec, into: Path | None) -> StepProfile:
    """Timed now, with a bar where somebody looks, and kept. into: A file; none: among the profiles of the user."""
    from service import keep_profile, profile_step

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("timing steps", total=None)
        found = profile_step(spec.train, on_step=lambda done: bar.update(task, completed=done))
    if into is None:
        return keep_profile(spec.train, found)
    into.write_text(found.model_dump_json(indent=2) + "\n")
    return found


def print_step(spec_file: Path, sets: list[str], as_json: bool) -> None:
    """Time the step of a spec, and print it, or end with exit status 2."""
    spec = read_job(spec_file, sets)
    with _refusing():
        found = timed_here(spec, None)
    if as_json:
        typer.echo(found.model_dump_json())
        return
    title = f"a minibatch of {found.of['batch.per_worker']} on {found.device}, {found.steps} steps"
    table = Table("part", title=title, title_justify="left", box=None)
    for heading in ("mean, ms", "spread, ms"):
        table.add_column(heading, justify="right")
    for name in ("data", "forward", "backward", "update"):
        timed = getattr(found, name)
        table.add_row(name, f"{1000 * timed.seconds:.4g}", f"{1000 * timed.spread_s:.2g}")
    wide_console().print(table)
    typer.echo(
        f"Two workers meet in {1e6 * found.link_latency_s:.3g} us, and one adds up {found.link_bytes_per_s / 1e9:.3g} "
        "GB/s of the other's. Kept for plans, and for predictions of runs."
    )


def check_options(
    model: str | None, of_models: Mapping[str, object], of_timings: Mapping[str, object], step: str = ""
) -> None:
    """Refuse an option of another part of the command, with exit status 2. step: The option that goes with neither."""
    for option, value in (of_models if model is None else of_timings).items():
        if value:
            fits = "only goes" if model is None and not step else "does not go"
            _refuse(f"{option}: {fits} with {step or '--model'}; leave it out")


def numbers(option: str, text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    """The whole numbers of `1,2,4`, or exit status 2."""
    if text is None:
        return default
    if not re.fullmatch(r" *[1-9]\d{0,8} *(, *[1-9]\d{0,8} *)*", text):
        _refuse(f"{option}: {text!r} is no list of whole numbers above 0; write for instance 16,32,64")
    return tuple(int(part) for part in text.split(","))


def _named(request: ModelRequest) -> JobSpec:
    """A spec that has only the model's name."""
    if request.sets:
        _refuse("--set: there is no spec in which to set a field; give a spec's file as --model")
    try:
        return JobSpec.model_validate({"model": request.model})
    except ValidationError as error:
        _refuse(f"--model: {error.errors()[0]['msg'].removeprefix('Value error, ')}")


def _shape(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,4})x([1-9]\d{0,4})", text)
    if match is None:
        _refuse(f"--image: {text!r} is not of the form CxHxW; write for instance 3x224x224")
    channels, height, width = (int(part) for part in match.groups())
    return channels, height, width


@contextmanager
def _refusing() -> Iterator[None]:
    """What the model or the machine does not allow, as one line and exit status 2."""
    try:
        yield
    except MillraceError as error:
        _refuse(str(error))


def _refuse(line: str) -> NoReturn:
    typer.echo(line, err=True)
    raise typer.Exit(BAD_INPUT)


@contextmanager
def _bar() -> Iterator[Callable[[str, float], None]]:
    """A progress bar on the error stream, where somebody looks."""
    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("warming up", total=1.0)
        yield lambda description, fraction: bar.update(task, description=description, completed=fraction)


def _show(*tables: Table) -> None:
    console = wide_console()
    for table in tables:
        console.print(table)


def _layers(cost: ModelCost) -> Table:
    title = f"{cost.model}, for {cost.example}; FLOPs of products only"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("layer")
    table.add_column("kind")
    for heading in ("forward MFLOP", "backward MFLOP", "%", "parameters", "%", "activities", "%"):
        table.add_column(heading, justify="right")
    rows = [(layer.name or "(its own)", layer.kind, layer.cost, layer.share) for layer in cost.layers]
    for name, kind, each, share in [*rows, ("all", "", cost.whole, cost.whole.share_of(cost.whole))]:
        cells = (
            f"{each.forward_flops / 1e6:,.2f}", f"{each.backward_flops / 1e6:,.2f}", f"{share.computation:.1%}",
            f"{each.parameters:,}", f"{share.parameters:.1%}", f"{each.activities:,}", f"{share.activities:.1%}",
        )  # fmt: skip
        table.add_row(Text(name), kind, *(cell.removesuffix("%") for cell in cells))
    return table


def _kinds(cost: ModelCost) -> Table:
    table = Table("\nkind", box=None)
    for heading in CostShare.model_fields:
        table.add_column(f"\n{heading}", justify="right")
    for kind, share in cost.kinds.items():
        table.add_row(kind, *(f"{part:.1%}" for part in share.model_dump().values()))
    return table


def _times(timings: Timings, layer: str) -> Table:
    """A row a size, a column a device, then the ratios."""
    curves = [curve for curve in timings.curves if curve.layer == layer]
    ratios = [ratio for ratio in timings.ratios if ratio.layer == layer]
    table = Table("\nimages" if layer == "convolution" else "\nn", box=None)
    for curve in curves:
        table.add_column(f"\n{layer.replace('_', ' ')}, ms, {curve.device} ({curve.hardware})", justify="right")
    for ratio in ratios:
        table.add_column(f"\ncpu / {ratio.device}", justify="right")
    for row in zip(*(curve.timings for curve in curves), strict=True):
        cells = [f"{1000 * timing.mean_s:.4g} ± {1000 * timing.spread_s:.2g}" for timing in row]
        cells += [f"{ratio.by_size[row[0].size]:.1f}" for ratio in ratios]
        table.add_row(str(row[0].size), *cells)
    return table


def _slopes(timings: Timings) -> Table:
    from service import slope_words

    table = Table("\nslope", "\ndevice", "\ntime against size", "\nr²", "\ncpu / gpu", box=None)
    ratios = {(ratio.layer, ratio.device): ratio.slopes for ratio in timings.ratios}
    for curve in timings.curves:
        if curve.line is None:
            continue
        ratio = ratios.get((curve.layer, curve.device))
        cells = (slope_words(curve.layer, curve.line.slope_s), f"{curve.line.r2:.3f}", f"{ratio:.1f}" if ratio else "")
        table.add_row(curve.layer.replace("_", " "), curve.device, *cells)
    return table
