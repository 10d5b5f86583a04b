"""`tensortap completion SHELL`: what a shell needs to complete commands, options and files."""

import click
from click.shell_completion import get_completion_class

from tensortap.cli.group import COMPLETE, NAMES
from tensortap.cli.output import write

_HOW = """Print what a shell needs to complete tensortap and tt.

\b
  bash  eval "$(tensortap completion bash)"        in ~/.bashrc
  zsh   eval "$(tensortap completion zsh)"         in ~/.zshrc
  fish  tensortap completion fish > ~/.config/fish/completions/tensortap.fish"""


@click.command(help=_HOW)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None  # click ships all three
    for name in NAMES:
        maker = kind(click.Command(name), {}, name, COMPLETE)
        # Not source(): it starts the shell to ask for its version.
        write(maker.source_template % maker.source_vars())
