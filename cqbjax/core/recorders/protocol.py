"""What is recorded inside the scan: a recorder is one file, and adding one edits nothing else."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.labels import SERVER
from cqbjax.core.types import Action, Problem, Queue, Workload

# Compensated sums, as `linalg.add` takes them: the sums, and what rounding has taken off.
Sums = tuple[Array, Array]


class Round(NamedTuple):
    """One round as a recorder sees it: in full, what policies may not see included.

    Attempts are those that ended in the round: `action` to `departed` have a leading axis [c] where
    several are served at a time, and so has `gave_up`.

    Attributes:
        problem: the static shapes.
        round: [] int32 t, from 1.
        world: contexts, utilities, arriving rows of the run.
        before: [C] the queue at the beginning of the round.
        action: what the policy decided.
        utilities: [N] true utilities of the served query.
        choice: [] int32 position in `action.servers`, K for the outside option.
        valid: [] bool whether a query was served and answered; all else of the service is void if
            not.
        departed: [] bool whether it left satisfied.
        after: [C] the queue after the round.
        length: [] int32 Q(t+1), who could be served in the next round.
        state: the policy's, after the round.
        gave_up: [] bool whether it left unsatisfied; None where nobody does.
        reneged: [C] bool who of `before` left without being served; None where nobody does.
        in_service: [] bool whether an attempt goes on; None where each ends in its round.
        prices: [N] by what each server's price is multiplied this round; None: by one.
        unanswered: [] bool whether a query was picked and none of its servers answers; None where
            all always do.
    """

    problem: Problem
    round: Array
    workload: Workload
    before: Queue
    action: Action
    utilities: Array
    choice: Array
    valid: Array
    departed: Array
    after: Queue
    length: Array
    state: Any
    gave_up: Array | None = None
    reneged: Array | None = None
    in_service: Array | None = None
    prices: Array | None = None
    unanswered: Array | None = None


class Summary(NamedTuple):
    """A number a run that follows from what was stored.

    Attributes:
        values: [...] over policy, arrival rate and seed.
        label: what an axis or a column is called.
        unit: of the values.
        better: whether `less` or `more` is better; "" where neither is.
        server: whose it is, of numbers that there is one of for each server.
    """

    values: np.ndarray
    label: str
    unit: str
    better: str = "less"
    server: int | None = None

    @property
    def attributes(self) -> dict[str, str | int]:
        """Return what the stored array says of itself."""
        whose: dict[str, str | int] = {} if self.server is None else {SERVER: self.server}
        return {"units": self.unit, "long_name": self.label, "better": self.better} | whose


class Recorder(abc.ABC):
    """What is summed or logged, in which unit, and how it is shown: a frozen dataclass.

    Its fields are numbers and words, part of the compiled program. Its class says the rest:

    Attributes:
        name: of the stored variable.
        label: what an axis or a column is called.
        unit: of the stored numbers.
        better: whether `less` or `more` is better; "" where neither is.
        per: `round`: read at every recorded round; `run`: read at the end of the run.
        dims: names of the further dimensions of what is read, such as ("query",); `llm` has the
            names of the LLMs as its coordinate.
        numbered: whether it wants `Queue.number`, where several queries come in a round.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    unit: ClassVar[str]
    better: ClassVar[Literal["less", "more", ""]] = ""
    per: ClassVar[Literal["round", "run"]] = "round"
    dims: ClassVar[tuple[str, ...]] = ()
    numbered: ClassVar[bool] = False

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, where this cannot be recorded."""
        del problem

    def start(self, problem: Problem) -> Any:
        """Return the state before round 1: arrays whose shapes and types never change.

        By default it is an int32 zero.
        """
        del problem
        return jnp.zeros((), jnp.int32)

    @abc.abstractmethod
    def update(self, state: Any, round_: Round) -> Any:
        """Add one round."""

    def read(self, state: Any) -> Array:
        """Return what is stored, over `dims`: the state itself, unless this says otherwise."""
        stored: Array = state
        return stored

    def summaries(self, stored: np.ndarray, horizon: int) -> Mapping[str, Summary]:
        """Return numbers a run that follow from what is stored, [..., *dims]: name -> number."""
        return {}

    @property
    def attributes(self) -> dict[str, str]:
        """Return what the stored array says of itself."""
        return {"units": self.unit, "long_name": self.label, "better": self.better}
