"""Clusters: Ray and Slurm run the shards of a sweep elsewhere, behind one method."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cqbjax.core.lazy import import_extra

__all__ = ["Cluster", "Ray", "Slurm", "TaskResult"]


class TaskResult(NamedTuple):
    """The result of a task that ended.

    Attributes:
        number: number of the task.
        value: what the function returned; None if it failed.
        reason: why it failed, in one line; empty if it did not.
    """

    number: int
    value: Any
    reason: str


class Cluster(Protocol):
    """Runs independent tasks, which may be repeated."""

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[TaskResult]:
        """Call a function on each task, and yield each result as the task ends, in any order.

        A task whose process died is repeated if the engine supports that. A task that raised an
        error is not repeated.

        Args:
            function: from a module that every machine has.
            tasks: objects that can be pickled.

        Raises:
            ValueError: the engine is not installed, or cannot be reached.
        """
        ...


@dataclass(frozen=True)
class Ray:
    """Ray runs each shard as a task, on this machine or on a running cluster.

    Attributes:
        address: address of a cluster; `auto` finds the cluster of this machine, None starts one
            here.
        cpus: CPUs of a task; None is 1 on a cluster, and an equal share of this machine.
        gpus: GPUs of a task.
        workers: concurrent tasks of a cluster started here; None is one per two cores.
        tries: how often a task is repeated after its process died.
    """

    address: str | None = None
    cpus: float | None = None
    gpus: float = 0
    workers: int | None = None
    tries: int = 3

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[TaskResult]:
        """Call a function on each task; see `Cluster.run`."""
        ray = import_extra("ray", "ray", "cluster=ray")
        started = not ray.is_initialized()
        options = {} if self.address else {"include_dashboard": False}
        try:
            if started:
                ray.init(self.address, log_to_driver=False, logging_level="ERROR", **options)
        except (ConnectionError, RuntimeError) as error:
            raise ValueError(
                f"cluster.address={self.address} cannot be reached: {describe_error(error)}"
            ) from error
        try:
            total = ray.cluster_resources().get("CPU", 1)
            workers = self.workers or max(1, int(total) // 2)
            cpus = self.cpus or (total / workers if self.address is None else 1)
            # With GPUs, Ray would start a new process for every task, which compiles again. Only
            # the decorator can change that (`max_calls`), not the method `options`.
            remote = ray.remote(
                num_cpus=cpus, num_gpus=self.gpus, max_calls=0, max_retries=self.tries,
                retry_exceptions=False,
            )(function)  # fmt: skip
            pending = {remote.remote(task): number for number, task in enumerate(tasks)}
            while pending:
                (ended, *_), _ = ray.wait(list(pending), num_returns=1)
                number, value, reason = pending.pop(ended), None, ""
                try:
                    value = ray.get(ended)
                except ray.exceptions.RayError as error:
                    reason = describe_error(getattr(error, "cause", None) or error)
                yield TaskResult(number, value, reason)
        finally:
            if started:
                ray.shutdown()


@dataclass(frozen=True)
class Slurm:
    """Slurm runs each shard as a job of an array, submitted through submitit.

    Attributes:
        folder: folder of submitit's files, on a disk shared by all machines.
        minutes: time limit of a job.
        at_once: most concurrent jobs.
        settings: further arguments of submitit: slurm_partition, cpus_per_task, gpus_per_node,
            mem_gb; None: none.
        local: whether jobs are processes of this machine, for testing.
        every: seconds between polls of the jobs.
    """

    folder: str
    minutes: int = 60
    at_once: int = 64
    settings: Mapping[str, Any] | None = None
    local: bool = False
    every: float = 2.0

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[TaskResult]:
        """Call a function on each task; see `Cluster.run`.

        A lost job counts as failed: the same command submits it again.
        """
        submitit = import_extra("submitit", "slurm", "cluster=slurm")
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        try:
            executor = submitit.AutoExecutor(
                folder=self.folder, cluster="local" if self.local else "slurm"
            )
            array = {} if self.local else {"slurm_array_parallelism": self.at_once}
            executor.update_parameters(timeout_min=self.minutes, **array, **(self.settings or {}))
            jobs = executor.map_array(function, tasks)
        except (RuntimeError, NameError, TypeError, submitit.core.utils.FailedJobError) as error:
            raise ValueError(f"cluster=slurm cannot submit: {describe_error(error)}") from error
        for job in submitit.helpers.as_completed(jobs, poll_frequency=self.every):
            value, reason = None, ""
            try:
                value = job.result()
            except submitit.core.utils.UncompletedJobError:
                reason = f"job {job.job_id} was lost (its log: {job.paths.stderr})"
            except submitit.core.utils.FailedJobError as error:
                reason = describe_error(error, -1)
            yield TaskResult(jobs.index(job), value, reason)


def describe_error(error: BaseException, line: int = 0) -> str:
    """Return why a task failed, in one line.

    Args:
        error: raised by an engine.
        line: which line of the error's text is returned: the first, or -1 if a traceback precedes
            the reason.
    """
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return lines[line] if lines else repr(error)
