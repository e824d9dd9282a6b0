"""The commands that pause, scale, resume and fork."""

import json
from typing import Annotated

import typer

from api.cli import Doors, JobId, Output, OutputOption, ServerOption, Sets, is_sweep


def add_verbs(app: typer.Typer, doors: Doors) -> None:
    """`pause`, `scale` and `resume` a job or a sweep, `fork` a job, list its `checkpoints`."""

    @app.command()
    def pause(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Stop a job with a checkpoint, or take a sweep's processes away, to go on later."""
        from api.commands import asking, print_job
        from api.sweep_commands import tell_sweep

        with asking(doors, server) as client:
            if is_sweep(job):
                tell_sweep(client.pause_sweep(job), output is Output.json)
                return
            view = client.pause(job)
            print_job(view, output is Output.json, f"Job {view.id} is {view.state}: {view.message}")

    @app.command()
    def scale(
        job: JobId,
        workers: Annotated[int, typer.Argument(min=1, help="How many are to train.")],
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Have another number of workers train a running job, without a restart."""
        from api.commands import asking, print_job

        with asking(doors, server) as client:
            view = client.scale(job, workers)
            print_job(view, output is Output.json, f"Job {view.id} is going to be trained by {workers} workers")

    @app.command()
    def resume(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """Go on with a job or a sweep that is paused."""
        from api.commands import asking, print_job
        from api.sweep_commands import tell_sweep

        with asking(doors, server) as client:
            if is_sweep(job):
                tell_sweep(client.resume_sweep(job), output is Output.json)
                return
            view = client.resume(job)
            print_job(view, output is Output.json, f"Job {view.id} is {view.state}: {view.message}")

    @app.command()
    def fork(
        job: JobId,
        *,
        sets: Sets = None,
        checkpoint: Annotated[str | None, typer.Option(metavar="STEP", help="Begin there. [the newest]")] = None,
        key: Annotated[str | None, typer.Option(help="Idempotency key: the same one makes one job.")] = None,
        watch: Annotated[bool, typer.Option("--watch", help="Follow the new job.")] = False,
        server: ServerOption = None,
        output: OutputOption = Output.text,
    ) -> None:
        """Begin a new job from a checkpoint of another, with changes to its spec."""
        from api.commands import asking, print_job, refused, watch_job
        from service import SpecInvalid, as_patch

        try:
            changes = as_patch(sets or [])
        except SpecInvalid as error:
            raise refused(error) from None
        with asking(doors, server) as client:
            view = client.fork(job, changes, checkpoint, key)
            if watch:
                raise typer.Exit(watch_job(client, view.id, output is Output.json))
            told = f"Job {view.id} begins from {view.forked_from}; `millrace watch {view.id}` follows it"
            print_job(view, output is Output.json, told)

    @app.command()
    def checkpoints(job: JobId, server: ServerOption = None, output: OutputOption = Output.text) -> None:
        """List the checkpoints that a job has kept, oldest first."""
        from api.commands import asking

        with asking(doors, server) as client:
            found = list(client.checkpoints(job))
        if output is Output.json:
            typer.echo(json.dumps({"checkpoints": [one.model_dump(mode="json") for one in found]}))
            return
        for one in found:
            size = sum(file.bytes for file in one.files)
            typer.echo(f"{one.step}  epoch {one.epoch}  {size / 1e6:,.1f} MB")
