"""The contract of recorders, which sum or log a quantity of each run inside the scan."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import linalg
from cqbjax.core.labels import SERVER
from cqbjax.core.types import Action, Problem, Queue, Workload

# Compensated sums, as in `linalg.add_compensated`: the sums, and what rounding has taken off.
Sums = tuple[Array, Array]


class Round(NamedTuple):
    """One round as a recorder sees it, including what is hidden from policies.

    The attempts are those that ended in this round. With c > 1 service channels, `action`,
    `utilities`, `choice`, `valid`, `departed`, `gave_up`, `in_service` and `unanswered` have a
    leading axis [c].

    Attributes:
        problem: the static settings.
        round: [] int32 t, from 1.
        workload: contexts, utilities and arriving rows of the run.
        before: [C] the queue at the beginning of the round.
        action: the policy's decision.
        utilities: [N] true utilities of the served query.
        choice: [] int32 position in `action.servers`, K for the outside option.
        valid: [] bool whether an attempt ended with an answer. If False, ignore `choice`, and also
            `action` and `utilities` unless `in_service` or `unanswered` is true.
        departed: [] bool whether the query left satisfied.
        after: [C] the queue after the round.
        length: [] int32 Q(t+1), the number of queries that can be served in the next round.
        state: the policy's state after the round.
        gave_up: [] bool whether the query left unsatisfied; None if users never give up.
        reneged: [C] bool slots of `before` whose query ran out of patience in this round and left
            while it was waiting; None if patience is unlimited.
        in_service: [] bool whether an attempt continues; None if each attempt ends in its round.
        prices: [N] factors on the servers' prices in this round; None: 1.
        unanswered: [] bool whether the policy selected a query but none of its servers answers;
            None if all servers always answer.
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
    """A number for each run, computed from a recorder's stored values.

    Attributes:
        values: [...] over policy, arrival rate and seed.
        label: name of an axis or a column.
        unit: unit of the values.
        better: whether `less` or `more` is better; "" if neither is.
        server: number of the server, if each server has such a value; else None.
    """

    values: np.ndarray
    label: str
    unit: str
    better: str = "less"
    server: int | None = None

    @property
    def attributes(self) -> dict[str, str | int]:
        """Return the attributes of the stored array."""
        server: dict[str, str | int] = {} if self.server is None else {SERVER: self.server}
        return {"units": self.unit, "long_name": self.label, "better": self.better} | server


class Recorder(abc.ABC):
    """A sum or log over the rounds of a run: a frozen dataclass whose fields are static.

    Attributes:
        name: of the stored variable.
        label: the name on axes and in tables.
        unit: of the stored numbers.
        better: `less` or `more`; "" if neither is better.
        per: `round`: read at every recorded round; `run`: read at the end of the run.
        dims: names of the dimensions of the array that `read` returns, such as ("query",). A
            dimension named `llm` gets the names of the LLMs as its coordinate.
        numbered: whether it needs the numbers of the queries, `Queue.number`.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    unit: ClassVar[str]
    better: ClassVar[Literal["less", "more", ""]] = ""
    per: ClassVar[Literal["round", "run"]] = "round"
    dims: ClassVar[tuple[str, ...]] = ()
    numbered: ClassVar[bool] = False

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, if this cannot be recorded."""
        del problem

    def start(self, problem: Problem) -> Any:
        """Return the state before round 1, a tree of arrays; by default an int32 zero."""
        return jnp.zeros((), jnp.int32)

    @abc.abstractmethod
    def update(self, state: Any, round_: Round) -> Any:
        """Return the state after a round, of the same shapes and types."""

    def read(self, state: Any) -> Array:
        """Return the array to store, with dimensions `dims`; by default this is the state."""
        return state

    def summaries(self, stored: np.ndarray, horizon: int) -> Mapping[str, Summary]:
        """Return summaries by name, computed from the stored array [..., *dims]."""
        return {}

    @property
    def attributes(self) -> dict[str, str]:
        """Return the attributes of the stored array: unit, label and direction."""
        return {"units": self.unit, "long_name": self.label, "better": self.better}


class SumRecorder(Recorder):
    """Compensated sums of terms over the rounds so far.

    Attributes:
        num_terms: how many sums.
    """

    num_terms: ClassVar[int] = 2

    def start(self, problem: Problem) -> Sums:
        """Return zero sums."""
        return jnp.zeros(self.num_terms), jnp.zeros(self.num_terms)

    def update(self, state: Sums, round_: Round) -> Sums:
        """Add the terms of the round."""
        terms = [jnp.sum(term) for term in self.terms(round_)]
        return linalg.add_compensated(*state, jnp.stack(terms))

    @abc.abstractmethod
    def terms(self, round_: Round) -> Sequence[Array]:
        """Return the terms of a round: [], or [c] with several channels."""
