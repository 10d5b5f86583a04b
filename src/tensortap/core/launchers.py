"""Which launchers start the ranks of a job: their commands, and the variables that they set."""

from typing import NamedTuple


class Launcher(NamedTuple):
    """One row; what is empty, the launcher does not have or shares with another."""

    commands: tuple[str, ...]  # names of programs, and of modules for `python -m`
    ranks: tuple[
        tuple[str, str], ...
    ] = ()  # variables of rank and world size, the first pair that is set counts
    identity: tuple[str, ...] = ()  # variables that all ranks of one launch share
    variables: tuple[str, ...] = ()  # further ones that it sets
    prefixes: tuple[str, ...] = ()  # of names of variables that are all its own
    can_rerun: bool = True  # whether `tensortap reproduce` can start it again


LAUNCHERS = (
    Launcher(
        commands=("torchrun", "torch.distributed.run", "torch.distributed.launch"),
        ranks=(("RANK", "WORLD_SIZE"),),
        identity=("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"),
        variables=(
            *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
            *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ),
        prefixes=("TORCHELASTIC_",),
    ),
    Launcher(
        commands=("srun",),
        # The step variables exist only inside a step.
        ranks=(("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("SLURM_PROCID", "SLURM_NTASKS")),
        identity=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        can_rerun=False,
    ),
    Launcher(
        commands=("mpirun", "mpiexec", "orterun"),
        ranks=(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),),
        identity=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        prefixes=("OMPI_", "PMIX_", "PMI_"),
    ),
    Launcher(commands=("accelerate", "accelerate.commands.launch")),
    Launcher(commands=("deepspeed",)),
    Launcher(commands=("horovodrun",)),
)
LAUNCHER_COMMANDS = {command: launcher for launcher in LAUNCHERS for command in launcher.commands}
_PREFIXES = tuple(prefix for launcher in LAUNCHERS for prefix in launcher.prefixes)
# Of launchers that can be started again: they set these anew.
_VARIABLES = frozenset(
    name
    for launcher in LAUNCHERS
    if launcher.can_rerun
    for name in (*launcher.variables, *launcher.identity, *(name for pair in launcher.ranks for name in pair))
)


def is_launcher_variable(name: str) -> bool:
    """Whether a launcher that is started again sets this environment variable anew."""
    return name in _VARIABLES or name.startswith(_PREFIXES)
