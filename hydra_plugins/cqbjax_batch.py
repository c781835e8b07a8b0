"""Hydra's sweeper and launcher of a multirun (`-m`): a command is handed all jobs at once.

Hydra looks for plugins in this namespace alone. What is done with the jobs stands in
`cqbjax.commands`; `hydra/launcher=basic` runs them one after another, as Hydra does by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn


@dataclass
class BatchLauncherConf:
    """How Hydra makes the launcher."""

    _target_: str = "hydra_plugins.cqbjax_batch.BatchLauncher"


ConfigStore.instance().store(
    group="hydra/launcher", name="batch", node=BatchLauncherConf, provider="cqbjax"
)


@dataclass
class BatchSweeperConf(BasicSweeperConf):
    """How Hydra makes the sweeper."""

    _target_: str = "hydra_plugins.cqbjax_batch.BatchSweeper"


ConfigStore.instance().store(
    group="hydra/sweeper", name="batch", node=BatchSweeperConf, provider="cqbjax"
)


class BatchSweeper(BasicSweeper):
    """Hydra's own sweeper, which would compose every job once more to see whether it can be."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Leave it to the launcher, which composes all before any runs."""
        if not isinstance(self.launcher, BatchLauncher):
            super().validate_batch_is_legal(batch)


class BatchLauncher(BasicLauncher):
    """Give a command that has a `together` all jobs of a sweeper's call at once."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs; those of a command without `together` one after another."""
        if not hasattr(self.task_function, "together"):
            return super().launch(job_overrides, initial_job_idx)
        from cqbjax.commands import _jobs  # where Hydra looks for plugins nothing is imported

        return _jobs.launch(
            self.hydra_context, self.config, self.task_function, job_overrides, initial_job_idx
        )
