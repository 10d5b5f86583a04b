"""`tensortap completion SHELL`: what a shell needs to complete commands, options and files."""

import click
from click.shell_completion import get_completion_class

from tensortap.cli.group import COMPLETION_VARIABLE, PROGRAM_NAMES
from tensortap.cli.output import write

_HOW = """Print what a shell needs to complete tensortap and tt.

\b
  bash  eval "$(tensortap completion bash)"        in ~/.bashrc
  zsh   eval "$(tensortap completion zsh)"         in ~/.zshrc
  fish  tensortap completion fish > ~/.config/fish/completions/tensortap.fish"""


@click.command(help=_HOW)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    completion_class = get_completion_class(shell)
    assert completion_class is not None  # click ships all three
    for name in PROGRAM_NAMES:
        completion = completion_class(click.Command(name), {}, name, COMPLETION_VARIABLE)
        # Not source(): it starts the shell to get its version.
        write(completion.source_template % completion.source_vars())
