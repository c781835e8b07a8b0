"""Tasks on Ray: a cluster of its own on this machine, or one that runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cqbjax.experiments.clusters.engine import TaskResult, describe_error, import_engine


@dataclass(frozen=True)
class Ray:
    """Ray's core, a task a shard.

    Attributes:
        address: of a cluster; `auto` finds the one that this machine is part of, None starts one
            here.
        cpus: CPUs that a task takes. None here is all of them, shared by `workers`.
        gpus: GPUs that a task takes.
        workers: tasks at once where a cluster is started here; None is one for each two cores.
        tries: how often a task is run again whose process died.
    """

    address: str | None = None
    cpus: float | None = None
    gpus: float = 0
    workers: int | None = None
    tries: int = 3

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[TaskResult]:
        """Call a function on each task; see `Cluster.run`."""
        ray = import_engine("ray", "ray")
        started = not ray.is_initialized()
        if started:
            self._start(ray)
        try:
            total = ray.cluster_resources().get("CPU", 1)
            workers = self.workers or max(1, int(total) // 2)
            cpus = self.cpus or (total / workers if self.address is None else 1)
            # With a GPU Ray would take a new process, which compiles anew, for every task, unless
            # the decorator says that a process may be called again: its `options` cannot.
            remote = ray.remote(
                num_cpus=cpus, num_gpus=self.gpus, max_calls=0, max_retries=self.tries,
                retry_exceptions=False,
            )(function)  # fmt: skip
            pending = {remote.remote(task): number for number, task in enumerate(tasks)}
            while pending:
                (ended, *_), _ = ray.wait(list(pending), num_returns=1)
                yield _done(ray, ended, pending.pop(ended))
        finally:
            if started:
                ray.shutdown()

    def _start(self, ray: Any) -> None:
        """Start a cluster here, or join one."""
        here = {} if self.address else {"include_dashboard": False}
        try:
            ray.init(self.address, log_to_driver=False, logging_level="ERROR", **here)
        except (ConnectionError, RuntimeError) as error:
            raise ValueError(
                f"cluster.address={self.address} cannot be reached: {describe_error(error)}"
            ) from error


def _done(ray: Any, ended: Any, number: int) -> TaskResult:
    """Return what came of a task that ended."""
    try:
        return TaskResult(number, ray.get(ended), "")
    except ray.exceptions.RayTaskError as error:
        return TaskResult(number, None, describe_error(error.cause))
    except ray.exceptions.RayError as error:
        return TaskResult(number, None, describe_error(error))
