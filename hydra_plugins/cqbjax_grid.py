"""Hydra's sweeper and launcher of `-m`: a command is handed all jobs at once.

Hydra 1.3 makes plugins of this namespace alone, and every Hydra program here imports it: nothing
of cqbjax is imported before it is needed. `conf/hydra/` chooses them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper


class Grid(Sweeper):
    """Launches all combinations at once; `hydra.sweeper.params` gives words of an experiment's own.

    Hydra's own sweeper composes every job once more, to see whether it can be.
    """

    def __init__(self, params: Mapping[str, str] | None = None) -> None:
        self._params = params or {}

    def setup(self, **given: Any) -> None:
        """Make the launcher."""
        self._launcher = Plugins.instance().instantiate_launcher(**given)

    def sweep(self, arguments: list[str]) -> None:
        """Launch all combinations of the words."""
        from cqbjax.cli import _multirun

        params = [f"{key}={values}" for key, values in self._params.items()]
        self._launcher.launch(_multirun.combinations([*params, *arguments]), 0)


class Together(Launcher):
    """Gives a command all jobs of a sweeper's call at once."""

    def setup(self, *, task_function: Any, config: Any, **_: Any) -> None:
        """Keep the task."""
        self._task, self._config = task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        """Run the task on the jobs, and return what it returned for each."""
        from cqbjax.cli import _multirun

        return _multirun.launch(self._task, self._config, job_overrides)
