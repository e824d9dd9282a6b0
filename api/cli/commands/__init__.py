"""The commands with their arguments and options, as Typer reads them."""
