"""The commands that need no service: begin a folder of one's own, train here and now, check, explain a recipe, plan,
measure links, export a model, profile layers, tune their products."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli.context import CliContext
from api.cli.options import AddressOption, CpusOption, DryRunOption, Output, OutputOption, ServerOption, Sets, SpecFile


class FormatName(StrEnum):
    """The formats of a finished model."""

    safetensors = "safetensors"
    torch_save = "torch.save"
    distributed = "torch.distributed.checkpoint"
    huggingface = "huggingface"
    torch_export = "torch.export"
    onnx = "onnx"


class PlanForm(StrEnum):
    """How a plan is printed."""

    text = "text"
    json = "json"
    md = "md"


class DeviceName(StrEnum):
    """The devices that layers are timed on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class TemplateName(StrEnum):
    """What a new folder begins with."""

    own = "own"
    classification = "classification"
    regression = "regression"
    language_model = "language_model"


def add_local(app: typer.Typer, context: CliContext) -> None:
    """Add `init`, `run`, `check`, `explain`, `plan`, `links`, `export`, `profile` and `tune`."""
    _add_init(app)
    _add_run(app, context)
    _add_check(app)
    _add_explain(app)
    _add_plan(app, context)
    _add_links(app, context)
    _add_export(app, context)
    _add_profile(app)
    _add_tune(app)


def _add_init(app: typer.Typer) -> None:
    @app.command()
    def init(
        folder: Annotated[Path, typer.Argument(help="A new folder, or an empty one.", show_default=False)],
        *,
        task: Annotated[
            TemplateName, typer.Option(help="own: with a loss and metrics of your own; else with a model of your own.")
        ] = TemplateName.own,
    ) -> None:
        """Write a task of your own with its dataset, spec and test, which `millrace run` trains at once."""
        from api.cli.actions.init import init_folder

        raise typer.Exit(init_folder(folder, task.value))


def _add_run(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def run(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        address: AddressOption = None,
        run_dir: Annotated[Path | None, typer.Option(help="Where the run leaves everything. [runs/JOB]")] = None,
        num_cpus: CpusOption = None,
        trace: Annotated[
            int, typer.Option(min=0, max=100, metavar="STEPS", help="Record so many steps of a worker. [none]")
        ] = 0,
        dashboard: Annotated[
            bool, typer.Option("--dashboard", help="Start Ray's dashboard too, which takes a second or two.")
        ] = False,
        dry_run: DryRunOption = False,
        output: OutputOption = Output.text,
    ) -> None:
        """Train one job here and now; needs no server. Ctrl-C stops it cleanly, a second one at once."""
        from api.cli.actions.run import RunRequest, run_here
        from api.cli.actions.specs import print_checked, read_job

        if dry_run:
            print_checked(read_job(spec_file, sets or []), output is Output.json)
            return
        as_json = output is Output.json
        request = RunRequest(spec_file, sets or [], address, run_dir, num_cpus, as_json, trace, dashboard)
        raise typer.Exit(run_here(context, request))


def _add_check(app: typer.Typer) -> None:
    @app.command()
    def check(spec_file: SpecFile, *, sets: Sets = None, output: OutputOption = Output.text) -> None:
        """Try in ten steps whether a job's model gives the same bits on one and on two processes."""
        from api.cli.actions.check import check_spec

        raise typer.Exit(check_spec(spec_file, sets or [], output is Output.json))


def _add_explain(app: typer.Typer) -> None:
    @app.command()
    def explain(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        examples: Annotated[
            int | None, typer.Option(min=1, help="Training examples; else the data are opened for it, if need be.")
        ] = None,
        memory: Annotated[
            bool, typer.Option("--memory", help="Build the model, and tell what a worker needs of memory.")
        ] = False,
        output: OutputOption = Output.text,
    ) -> None:
        """Print the whole recipe of a job before anything runs: batch, rates, decay, steps, with their formulas."""
        from api.cli.actions.recipe import print_recipe

        print_recipe(spec_file, sets or [], examples, memory, output is Output.json)


def _add_plan(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def plan(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        workers: Annotated[
            str | None, typer.Option(metavar="1..64", help="Or 1,2,4. [up to what the spec and the cluster allow]")
        ] = None,
        cluster: Annotated[
            str | None, typer.Option(metavar="FILE|NAME", help="A described cluster. [this machine, timed]")
        ] = None,
        profile: Annotated[
            Path | None, typer.Option(help="Timed steps of this spec; where the file is missing, they are kept there.")
        ] = None,
        links: Annotated[
            Path | None, typer.Option(help="What `millrace links` has measured. [one machine]", metavar="FILE")
        ] = None,
        nodes: Annotated[
            str | None, typer.Option(metavar="1..16", help="Instead of workers: so many nodes, all filled.")
        ] = None,
        target: Annotated[
            str | None, typer.Option(metavar="METRIC=VALUE", help="How long until then, as earlier runs of it tell.")
        ] = None,
        noise_scale: Annotated[
            bool, typer.Option("--noise-scale", help="Of the target, runs with other batches tell too.")
        ] = False,
        server: Annotated[
            str | None, typer.Option(metavar="URL", help="Have this service plan it, with its jobs. [here]")
        ] = None,
        price: Annotated[float | None, typer.Option(min=0, metavar="EUR/H", help="Of one worker.")] = None,
        plot: Annotated[Path | None, typer.Option(help="Where a picture goes, a PNG.")] = None,
        search: Annotated[bool, typer.Option(help="Other algorithms, minibatches and shards too.")] = False,
        simulate: Annotated[
            int,
            typer.Option(min=0, max=8, help="Simulate the recommended one and the N - 1 fastest others.", metavar="N"),
        ] = 0,
        output: Annotated[PlanForm, typer.Option("-o", "--output", help="json: one object.")] = PlanForm.text,
    ) -> None:
        """Predict what more workers would bring: the rate, what holds it back, what it costs."""
        from api.cli.actions.planning.plan import PlanOptions, print_plan

        options = PlanOptions(
            workers, cluster, profile, links, nodes, target, noise_scale, server, price, plot, search, simulate
        )
        print_plan(context, spec_file, sets or [], options, output.value)


def _add_links(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def links(
        *,
        address: AddressOption = None,
        at_once: Annotated[str, typer.Option(metavar="1,2,4", help="Transfers at the same time.")] = "1,2,4",
        file: Annotated[Path, typer.Option(help="Where they are kept.")] = Path("links.json"),
        output: OutputOption = Output.text,
    ) -> None:
        """Measure latency and bandwidth of each transport on and between the nodes of a cluster, for plans."""
        from api.cli.actions.planning.links import measure

        raise typer.Exit(measure(context, address, at_once, file, output is Output.json))


def _add_export(app: typer.Typer, context: CliContext) -> None:
    @app.command()
    def export(
        run: Annotated[
            str, typer.Argument(metavar="RUN", help="A run directory, or the id of a job.", show_default=False)
        ],
        *,
        form: Annotated[
            FormatName | None,
            typer.Option("--format", help="torch.export and onnx hold the computation too. [by the ending of --to]"),
        ] = None,
        to: Annotated[Path | None, typer.Option(help="The file or folder. [beside the finished model]")] = None,
        raw: Annotated[bool, typer.Option("--raw", help="The parameters as they are, not their average.")] = False,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Write a finished model, of a run on this machine, in another format; load it again and compare."""
        from api.cli.actions.models import export_run

        status = export_run(context, server, run, (form.value if form else None, to, raw), output is Output.json)
        raise typer.Exit(status)


def _add_profile(app: typer.Typer) -> None:
    @app.command()
    def profile(
        *,
        model: Annotated[
            str | None, typer.Option(help="A model by name, or a spec's file: count its layers instead.")
        ] = None,
        step: Annotated[
            Path | None, typer.Option(metavar="SPEC", help="Time 20 steps of a worker of this spec instead; kept.")
        ] = None,
        sets: Sets = None,
        image: Annotated[str | None, typer.Option(metavar="CxHxW", help="The model's images.")] = None,
        classes: Annotated[int | None, typer.Option(min=1, help="The model's classes.")] = None,
        batches: Annotated[str | None, typer.Option(metavar="N,N...", help="Images at once.")] = None,
        sizes: Annotated[str | None, typer.Option(metavar="N,N...", help="n of the n x n matrix.")] = None,
        repeats: Annotated[int, typer.Option(min=1, help="Passes that are timed, for each size.")] = 10,
        device: Annotated[DeviceName, typer.Option(help="auto: the CPU and each kind of GPU.")] = DeviceName.auto,
        threads: Annotated[int | None, typer.Option(min=1, help="Of torch on the CPU.")] = None,
        plot: Annotated[Path, typer.Option(help="Where the picture goes, a PNG.")] = Path("profile.png"),
        output: OutputOption = Output.text,
    ) -> None:
        """Time a convolution and a fully connected layer, or a job's step, here; or count a model's layers."""
        from api.cli.actions.profile import ModelRequest, check_options, numbers, print_model, print_step, print_timings
        from service import TimingPlan

        of_models: dict[str, object] = {"--image": image, "--classes": classes}
        if step is not None:
            others = {"--model": model, "--batches": batches, "--sizes": sizes, "--threads": threads}
            check_options(None, of_models | others, {}, "--step")
            print_step(step, sets or [], output is Output.json)
            return
        of_models["--set"] = sets
        check_options(model, of_models, {"--batches": batches, "--sizes": sizes, "--threads": threads})
        if model is not None:
            print_model(ModelRequest(model, sets or [], image, classes), output is Output.json)
            return
        defaults = TimingPlan()
        plan = TimingPlan(
            batches=numbers("--batches", batches, defaults.batches),
            sizes=numbers("--sizes", sizes, defaults.sizes),
            repeats=repeats,
            device=device.value,
            threads=threads,
        )
        print_timings(plan, plot, output is Output.json)


def _add_tune(app: typer.Typer) -> None:
    @app.command()
    def tune(
        spec_file: SpecFile,
        *,
        sets: Sets = None,
        again: Annotated[bool, typer.Option("--again", help="Measure what the table has too.")] = False,
        output: OutputOption = Output.text,
    ) -> None:
        """Measure which library makes the products of a job's layers faster here, so that its runs need not."""
        from api.cli.actions.tune import tune_spec

        tune_spec(spec_file, sets or [], again, output is Output.json)
