"""The command line: `fedlib` or `python -m fedlib`.

What is slow to import (torch, papermill, rich) is imported by the command that needs it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedlib import notebooks
from fedlib.checks import FedlibError, check_choice
from fedlib.paths import SCALES, figures_folder, project_root, runs_folder

EPILOG = """\
examples:
  fedlib reproduce                                  every notebook at smoke scale, in parallel
  fedlib reproduce feddrm --scale laptop --jobs 4   one paper's notebooks, on real data
  fedlib reproduce --only-failed                    again those that did not end well
  fedlib why lambda_sweep                           which runs would train, and what changed
  fedlib data check cifar10                         whether the data is there and whole

`fedlib COMMAND --help` tells more. The scales are smoke (minutes, no download), laptop (the committed figures)
and paper (the published settings).
"""

NOTEBOOK = "a notebook (feddrm/lambda_sweep, lambda_sweep, or a path) or a paper (feddrm)"


Command = Callable[[argparse.Namespace], int]
Subcommands = Any  # argparse keeps the type of add_subparsers() to itself


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as written, with room for the names of commands and options."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=18, width=100)


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: good; 1: a notebook failed, or the README's table is stale; 2: bad input; 130: Ctrl-C.
    """
    given = sys.argv[1:] if argv is None else argv
    parser, commands = _parser()
    try:
        if given and not given[0].startswith("-"):
            check_choice("command", given[0], commands)
        arguments = parser.parse_args(given)
        if arguments.command is None:
            parser.print_help()
            return 0
        if "scale" in arguments:
            check_choice("--scale", arguments.scale, SCALES)
        _check_data_root(getattr(arguments, "data", None))
        return commands[arguments.command](arguments)
    except FedlibError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def reproduce(arguments: argparse.Namespace) -> int:
    """Run notebooks, then show the table of outcomes and write the report."""
    from fedlib import batch, display, report

    wanted = notebooks.find(arguments.notebooks)
    scale = arguments.scale
    out = (arguments.out or project_root() / "build" / scale).expanduser().resolve()
    interrupted = False
    try:
        outcomes = batch.reproduce(
            wanted, scale, out, arguments.jobs, arguments.data, arguments.only_failed, arguments.again
        )
    except batch.Interrupted as stop:
        outcomes, interrupted = stop.outcomes, True
    screen = display.console()
    if outcomes:
        display.show_end(screen, outcomes, out)
        if unchanged := sum(o.unchanged for o in outcomes):
            print(
                f"{unchanged} of {len(outcomes)} were not executed: nothing they depend on has changed (--again does)"
            )
    elif not interrupted:
        print("Nothing to do: no notebook failed.")
    if interrupted:
        print("Stopped. What was trained is kept: the same command goes on from there.")
    try:
        print(f"Report: {report.write(out, scale, batch.recorded(out))}")
    except Exception as error:  # the notebooks are done: what they gave stands above, whatever ails the page
        print(f"error: the report could not be written ({type(error).__name__}: {error})", file=sys.stderr)
        return 1
    return 130 if interrupted else int(any(o.status != "ok" for o in outcomes))


def show_list(arguments: argparse.Namespace) -> int:
    """Show the notebooks by paper."""
    from rich.table import Table

    from fedlib import display

    table = Table()
    for heading in ("notebook", "paper item", "what it shows", "scales", "figures kept"):
        table.add_column(heading, no_wrap=heading == "notebook")
    paper = None
    for notebook in notebooks.find(arguments.notebooks):
        if notebook.paper != paper and paper is not None:
            table.add_section()
        paper = notebook.paper
        about = notebook.about()
        kept = [scale for scale in SCALES if notebook.figure(scale, "png").is_file()]
        scales = " ".join(notebook.scales())
        table.add_row(notebook.name, about.get("item", ""), about.get("shows", ""), scales, " ".join(kept))
    display.console().print(table)
    return 0


def why(arguments: argparse.Namespace) -> int:
    """Print which runs of a notebook would train, and why."""
    from fedlib import batch

    for notebook in notebooks.find([arguments.notebook]):
        lines = batch.why(notebook, arguments.scale, arguments.data)
        print(f"{notebook.name} at {arguments.scale} scale:")
        for line in lines or ["no runs: this notebook trains nothing"]:
            print(f"  {line}")
    return 0


def data(arguments: argparse.Namespace) -> int:
    """List the data sets and where they are, or check some of them."""
    from fedlib.data import vision

    root = vision.data_root(arguments.data)
    available = vision.available(root)
    if arguments.names and arguments.action == "list":
        known = [check_choice("data set", name, [line.name for line in available]) for name in arguments.names]
        available = [line for line in available if line.name in known]
    if arguments.action == "list":
        print(f"data root: {root}")
        for line in available:
            counts = line.problem or f"{line.images:>8,} {vision.unit(line.name):<6}  {line.classes:>4} classes"
            print(f"  {line.name:<28}{counts}  {line.where}")
        return 0
    bad = 0
    for name in arguments.names or [line.name for line in available]:
        try:
            table = vision.check(name, root)
        except FedlibError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            bad += 1
            continue
        train, test = int(table["train"].sum()), int(table["test"].sum())
        print(f"{name}: good, {train:,} train and {test:,} test {vision.unit(name)} in {len(table)} classes")
    return 2 if bad else 0


def readme(arguments: argparse.Namespace) -> int:
    """Write the README's table of notebooks and figures/laptop/claims.csv anew, or say whether they are stale."""
    from fedlib import readme as page

    file = project_root() / "README.md"
    if not file.is_file():
        raise FedlibError(f"{file} is missing; the table of notebooks is written into it")
    if arguments.check:
        stale = page.is_stale(file)
        behind = "its table of notebooks or figures/laptop/claims.csv is stale; run `fedlib readme`"
        print(f"{file}: {behind if stale else 'up to date'}")
        return int(stale)
    print(f"{file}: {'table written' if page.update(file) else 'up to date'}")
    return 0


def clean(arguments: argparse.Namespace) -> int:
    """Remove what can be made again."""
    folders = [project_root() / "build", figures_folder("smoke")]
    if arguments.runs:
        folders.append(runs_folder())
    folders = [folder for folder in folders if folder.is_dir()]
    if arguments.runs and not arguments.yes and folders:
        print("This removes every kept run; all of them would be trained again:")
        print("\n".join(f"  {folder}" for folder in folders))
        if not sys.stdin.isatty():
            raise FedlibError("nobody is there to confirm; add --yes")
        if input("Remove them? [y/N] ").strip().lower() not in ("y", "yes"):
            print("Nothing removed.")
            return 0
    for folder in folders:
        shutil.rmtree(folder)
        print(f"removed {folder}")
    return 0


def _parser() -> tuple[argparse.ArgumentParser, dict[str, Command]]:
    """The parser, and the function of each command."""
    parser = argparse.ArgumentParser(
        prog="fedlib",
        description="Federated learning under heterogeneity: one executed notebook per published figure or table.",
        epilog=EPILOG,
        formatter_class=Help,
    )
    parser.add_argument("--version", action="version", version=f"fedlib {_version()}")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_reproduce(sub)
    one = sub.add_parser("list", help="the notebooks by paper, their scales and figures", formatter_class=Help)
    one.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help=f"{NOTEBOOK}; all when left out")
    _add_why(sub)
    _add_data(sub)
    one = sub.add_parser(
        "readme", help="write the README's table of notebooks and the file of all verdicts", formatter_class=Help
    )
    one.add_argument("--check", action="store_true", help="only say whether it is stale (then the exit code is 1)")
    one = sub.add_parser("clean", help="remove build/ and figures/smoke", formatter_class=Help)
    one.add_argument("--runs", action="store_true", help="the kept runs too: everything would be trained again")
    one.add_argument("--yes", action="store_true", help="do not ask before removing runs")
    return parser, {
        "reproduce": reproduce,
        "list": show_list,
        "why": why,
        "data": data,
        "readme": readme,
        "clean": clean,
    }


def _add_reproduce(sub: Subcommands) -> None:
    one = sub.add_parser(
        "reproduce",
        help="run notebooks; ends with verdicts and a report",
        description="""\
Run notebooks through papermill, several at once. A failing one does not stop
the others: its output is kept under failed/, its cell and message are in the
closing table, and the exit code is 1. Trained runs are kept, so a second call
takes seconds. Ctrl-C keeps what is done; the same command goes on from there.""",
        epilog="""\
examples:
  fedlib reproduce
  fedlib reproduce feddrm/lambda_sweep start_here --jobs 2
  fedlib reproduce feddrm --scale laptop --data ~/data
  fedlib reproduce --only-failed""",
        formatter_class=Help,
    )
    one.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help=f"{NOTEBOOK}; all when left out")
    _add_scale(one)
    one.add_argument("--jobs", type=int, metavar="N", help="notebooks at once (default: the number of cores)")
    _add_data_root(one)
    one.add_argument("--out", type=Path, metavar="FOLDER", help="where the outputs go (default: build/<scale>)")
    one.add_argument("--only-failed", action="store_true", help="leave out those that ended well the last time")
    one.add_argument("--again", action="store_true", help="execute those too of which nothing has changed since")


def _add_why(sub: Subcommands) -> None:
    one = sub.add_parser(
        "why",
        help="which runs would train, and what changed",
        description="""\
Execute a notebook up to its runs, and say of each whether it is kept or would
train, and why. Nothing is trained.""",
        epilog="example:\n  fedlib why feddrm/lambda_sweep --scale laptop",
        formatter_class=Help,
    )
    one.add_argument("notebook", metavar="NOTEBOOK", help=NOTEBOOK)
    _add_scale(one)
    _add_data_root(one)


def _add_data(sub: Subcommands) -> None:
    one = sub.add_parser(
        "data",
        help="the data sets that are here, and whether they are whole",
        description="""\
list: every data set that can be loaded now, and where it lies.
check: read data sets in full and count them; a damaged one is an error.""",
        epilog="examples:\n  fedlib data list\n  fedlib data check cifar10 --data ~/data",
        formatter_class=Help,
    )
    one.add_argument("action", choices=["list", "check"], help="what to do")
    one.add_argument("names", nargs="*", metavar="NAME", help="data sets (default: all that are here)")
    _add_data_root(one)


def _add_scale(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", default="smoke", metavar="SCALE", help="smoke, laptop or paper (default: smoke)")


def _add_data_root(parser: argparse.ArgumentParser) -> None:
    text = "the folder of the data sets (default: FEDLIB_DATA, else ~/.cache/fedlib)"
    parser.add_argument("--data", type=Path, metavar="FOLDER", help=text)


def _check_data_root(folder: Path | None) -> None:
    """Refuse a data folder that is not there, unless torchvision may make and fill it."""
    if folder is not None and not folder.expanduser().is_dir() and os.environ.get("FEDLIB_DOWNLOAD") != "1":
        raise FedlibError(f"--data: {folder} is no folder; give the one that holds the data sets")


def _version() -> str:
    try:
        return importlib.metadata.version("fedlib")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
