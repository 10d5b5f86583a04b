"""The command `tensortap`: a table of its subcommands, each imported when it is called."""

import sys

# The file cli/commands/<name>.py holds `command`, a click command that returns its exit code (None for 0).
COMMANDS = {
    "view": "runs, traces and comparisons in a browser",
    "run": "run any program, unedited: its metadata, and what --tap selects in its models",
    "ls": "list the runs below folders: what made them, how large they are, whether they are whole",
    "tree": "the modules of a run with their values: type, shape, range, what is not finite",
    "show": "one value: statistics, histogram, heat map, its way over the steps; or the names of a run",
    "compare": "two runs or files: where they part, and whether that is more than noise",
    "diff": "how two runs were made: code, packages, environment, configuration, machine",
    "export": "values of a run for other programs: .npz, .safetensors, .h5; or one page, .html",
    "serve": "receive what catch() sends: show it, and record it with --to runs/",
    "jobs": "list the programs that listen for live sessions",
    "attach": "watch a running program: rate, drops, lag and overhead",
    "reproduce": "run a run again, in a folder of its own, and say whether it gives the same numbers",
    "verify": "read every value of a run again: lengths, checksums, packs, facts, strays",
    "gc": "what could be deleted: half-written files of dead programs, caches, empty runs; asks first",
    "doctor": "what is installed, what is missing and how to get it, what is set, what is in the way",
    "completion": "print what a shell needs to complete these commands",
}
_NO_CLICK = "tensortap: the command line needs click, which is not installed; pip install 'tensortap[cli]'"


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    try:
        from tensortap.cli.group import run_command
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print(_NO_CLICK, file=sys.stderr)
        return 2
    return run_command(COMMANDS, sys.argv[1:] if arguments is None else arguments)
