"""Where the shards of a sweep run beside this process: engines that exist, behind one call."""

from cqbjax.experiments.clusters.engine import Cluster, TaskResult
from cqbjax.experiments.clusters.on_ray import Ray
from cqbjax.experiments.clusters.on_slurm import Slurm

__all__ = ["Cluster", "Ray", "Slurm", "TaskResult"]
