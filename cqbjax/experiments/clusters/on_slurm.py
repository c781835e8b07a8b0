"""Tasks on Slurm, through submitit: an array of jobs."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cqbjax.experiments.clusters.engine import TaskResult, describe_error, import_engine


@dataclass(frozen=True)
class Slurm:
    """An array of jobs, one a task.

    Attributes:
        folder: of submitit's own files, on a disk that all machines see.
        minutes: that a job may take.
        at_once: jobs that run at the same time.
        settings: what else submitit is told: slurm_partition, cpus_per_task, gpus_per_node, mem_gb;
            None is nothing.
        local: whether jobs are processes of this machine, as for trying things out.
        every: seconds between looks at the jobs.
    """

    folder: str
    minutes: int = 60
    at_once: int = 64
    settings: Mapping[str, Any] | None = None
    local: bool = False
    every: float = 2.0

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[TaskResult]:
        """Call a function on each task; see `Cluster.run`.

        A job that was lost is told like one that failed: the same command submits it again.
        """
        submitit = import_engine("submitit", "slurm")
        jobs = dict(enumerate(self._submit(submitit, function, tasks)))
        while jobs:
            ended = [number for number, job in jobs.items() if job.done()]
            for number in ended:
                yield _done(submitit, jobs.pop(number), number)
            if jobs and not ended:
                time.sleep(self.every)

    def _submit(
        self, submitit: Any, function: Callable[[Any], Any], tasks: Sequence[Any]
    ) -> list[Any]:
        """Submit the tasks."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        try:
            executor = submitit.AutoExecutor(
                folder=self.folder, cluster="local" if self.local else "slurm"
            )
            array = {} if self.local else {"slurm_array_parallelism": self.at_once}
            executor.update_parameters(timeout_min=self.minutes, **array, **(self.settings or {}))
            return list(executor.map_array(function, tasks))
        except (RuntimeError, NameError, TypeError, submitit.core.utils.FailedJobError) as error:
            raise ValueError(f"cluster=slurm cannot submit: {describe_error(error)}") from error


def _done(submitit: Any, job: Any, number: int) -> TaskResult:
    """Return what came of a job that ended."""
    try:
        return TaskResult(number, job.result(), "")
    except submitit.core.utils.UncompletedJobError:
        return TaskResult(number, None, f"job {job.job_id} was lost (its log: {job.paths.stderr})")
    except submitit.core.utils.FailedJobError as error:
        return TaskResult(number, None, describe_error(error, -1))
