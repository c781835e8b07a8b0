"""Hydra's sweeper and launcher of `-m`, which hand all jobs to a command at once.

Hydra 1.3 loads plugins from this namespace only, and every Hydra program on this machine imports
it, so nothing of cqbjax is imported before it is needed. `conf/hydra/` selects the two classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper


class Grid(Sweeper):
    """Launches all combinations at once; `hydra.sweeper.params` adds overrides of an experiment.

    Hydra's basic sweeper would compose every job once more to validate it.
    """

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self._params = params or {}

    def setup(self, **options: Any) -> None:
        """Create the launcher."""
        self._launcher = Plugins.instance().instantiate_launcher(**options)

    def sweep(self, arguments: list[str]) -> None:
        """Launch all combinations of the overrides."""
        from cqbjax.cli import _compose

        params = [f"{key}={values}" for key, values in self._params.items()]
        self._launcher.launch(_compose.combine_words([*params, *arguments]), 0)


class BatchLauncher(Launcher):
    """Calls a command once, with all jobs of a sweeper's call."""

    def setup(self, *, task_function: Any, config: Any, **_: Any) -> None:
        """Store the task and its configuration."""
        self._task, self._config = task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        """Run the task on the jobs, and return its value for each."""
        from cqbjax.cli import _compose

        return _compose.launch_jobs(self._task, self._config, job_overrides)
