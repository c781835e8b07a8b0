"""The jobs of a command, grouped into studies whose points are composed.

This module imports nothing heavy: a wrong value is reported before JAX is loaded.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cqbjax.experiments import grid, validation
from cqbjax.experiments.configs import Composed


class Job(NamedTuple):
    """One configuration that a command runs.

    Attributes:
        config: composed; its key `grid` names the keys whose list spans a grid.
        swept: the keys in which the jobs of a multirun differ, with the values of this job.
        words: its overrides, `key=value`.
        searched: whether a search asks for its objective.
    """

    config: Composed
    swept: Mapping[str, Any]
    words: Sequence[str]
    searched: bool = False


@dataclasses.dataclass
class Study:
    """The jobs of one name.

    Attributes:
        jobs: in their order.
        strict: whether an invalid point stops the study; otherwise it is skipped.
        points: of each job; None for a job that was skipped.
        skipped: a message for each job or point that was skipped.
    """

    jobs: Sequence[Job]
    strict: bool
    points: list[list[grid.GridPoint] | None] = dataclasses.field(default_factory=list)
    skipped: list[str] = dataclasses.field(default_factory=list)

    @property
    def config(self) -> Composed:
        """The configuration of the first job."""
        return self.jobs[0].config

    @property
    def folder(self) -> Path:
        """The folder of its arrays."""
        return Path(self.config.results_dir) / "data" / self.config.name

    def attempt(self, function: Callable[..., list[Any]], job: Job, *values: Any) -> Any:
        """Return `function(job, *values)`, or None after a ValueError, whose message is stored.

        Raises:
            ValueError: the same, if the study is strict.
        """
        try:
            return function(job, *values)
        except ValueError as error:
            message = validation.name_typed_key(str(error), job.words, job.config)
            if self.strict:
                raise (error if message == str(error) else ValueError(message)) from error
            self.skipped.append(f"{grid.format_words(job.swept)} left out: {message}")
            return None


def compose_studies(
    jobs: Sequence[Job], check_words: Callable[[Sequence[str], Iterable[Composed]], None]
) -> list[Study]:
    """Group jobs by name, and compose their points.

    Args:
        jobs: of a command.
        check_words: raises if a key among the overrides is read by none of the configurations.

    Raises:
        ValueError: a wrong key or value.
    """
    studies = []
    for name in dict.fromkeys(job.config.name for job in jobs):
        own = [job for job in jobs if job.config.name == name]
        if len({str(job.config.kind.get("_target_")) for job in own}) > 1:
            raise ValueError(f"name={name} has several types of study: give each its own name")
        check_words(own[0].words, [job.config for job in own])
        studies.append(Study(own, len(own) == 1 or bool(own[0].config.fail_fast)))
        for job in own:
            points = studies[-1].attempt(lambda one: grid.compose(one.config, one.swept), job)
            studies[-1].points.append(points)
    return studies
