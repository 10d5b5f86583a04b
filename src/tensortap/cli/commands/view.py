"""`tensortap view`: runs, traces and comparisons in a browser."""

import signal
import sys
import threading
import webbrowser
from pathlib import Path

import click

from tensortap.cli.output import json_option, note, write, write_json
from tensortap.viewer.server import View
from tensortap.viewer.server import view as start

_PATHS = "runs, folders of runs, .h5 traces; of exactly two, the comparison is opened"


@click.command(help=f"Look at runs in a browser. PATH: {_PATHS}; without one, runs/ or this folder.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port; 0 takes a free one.")
@click.option("--open/--no-open", "opens", default=True, help="Open the page in a browser.")
@click.option(
    "--allow-actions", is_flag=True, help="Let the page place taps in running jobs, and save rules."
)
@json_option
def command(paths: tuple[Path, ...], port: int, opens: bool, allow_actions: bool, as_json: bool) -> int:
    is_over = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: is_over.set())
    with start(*(paths or (_default_folder(),)), port=port, allow_actions=allow_actions) as view:
        _write_url(view, as_json)
        view.tokens.on_token_reused = lambda: note(
            f"that address was used before; here is another: {view.url}", "view"
        )
        if opens:
            webbrowser.open(view.url)
        is_over.wait()
    return 0


def _write_url(view: View, as_json: bool) -> None:
    if as_json:
        write_json(
            "view", {"url": view.url, "address": view.address, "runs": len(view.state.library.run_ids)}
        )
    else:
        write(view.url)
        note("this address lets one browser in, once; Ctrl-C ends the viewer", "view")
    sys.stdout.flush()  # for a reader of the pipe


def _default_folder() -> Path:
    return Path("runs") if Path("runs").is_dir() else Path()
