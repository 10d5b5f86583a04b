"""`tensortap jobs`: the programs of this user that listen for live sessions."""

from dataclasses import asdict

import click

from tensortap.cli.output import note, write, write_json
from tensortap.live.discovery import jobs


@click.command(help="The programs of this user that listen for live sessions.")
@click.option("--json", "as_json", is_flag=True, help="one JSON object per line")
def command(as_json: bool) -> None:
    listening = jobs()
    if not listening:
        note(str(listening), "jobs")
    elif not as_json:
        write(str(listening))
        return
    for job in listening:
        write_json("jobs", asdict(job))
