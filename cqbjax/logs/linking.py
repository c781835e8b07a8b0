"""The linking rule: which conversation is a retrial of which, and the chains that follow.

Retrials are not marked in a log. A user's conversations are taken in the order of their inferred
arrivals. Each is linked to the latest earlier one of the same user that

    is unresolved:   nothing was linked to it yet,
    had ended:       its last assistant response is earlier than the new arrival, by `min_gap`,
    asked the same:  the first prompts are identical, or their embeddings have cosine >= threshold.

Similarity is computed within a user, of distinct texts, some rows at a time; there is never a
matrix of all pairs.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from cqbjax.logs.reading import SECOND
from cqbjax.logs.shards import LogError

Among = Literal["open", "adjacent"]
BLOCK = 1024  # conversations of a user whose similarities are in memory at once


class Rule(NamedTuple):
    """When a conversation is a retrial of an earlier one.

    Attributes:
        threshold: least cosine of the first prompts; at 1 they must be identical.
        min_gap: least seconds from the last response of the one to the arrival of the other.
        among: `open` looks at all unresolved conversations of the user, `adjacent` at the one just
            before alone, as if asking for something else had resolved all earlier ones.
    """

    threshold: float = 0.995
    min_gap: float = 0.0
    among: Among = "open"

    def check(self) -> None:
        """Refuse what is out of range.

        Raises:
            LogError: naming the key and what is allowed.
        """
        if not 0 < self.threshold <= 1:
            raise LogError(f"threshold={self.threshold} must be a cosine in (0, 1].")
        if not 0 <= self.min_gap < float("inf"):
            raise LogError(f"min_gap={self.min_gap} must be seconds, and not negative.")
        if self.among not in ("open", "adjacent"):
            raise LogError(f"among={self.among} must be open or adjacent.")


class Chains(NamedTuple):
    """Chains of retrials, by the arrival of their first conversations.

    Attributes:
        members: [n] int64 rows of the log's frame, chain by chain, each in order.
        first: [m + 1] int64 where each chain begins in `members`.
        identical: pairs linked because their prompts are identical.
        similar: pairs linked by the cosine alone.
        early: conversations that asked the same as an unresolved one which had not ended by then
            (or not by `min_gap`), and were linked to none.
    """

    members: np.ndarray
    first: np.ndarray
    identical: int
    similar: int
    early: int

    @property
    def lengths(self) -> np.ndarray:
        """[m] conversations of each chain."""
        return np.diff(self.first)

    def by_length(self) -> dict[int, int]:
        """Return length -> chains."""
        lengths, counts = np.unique(self.lengths, return_counts=True)
        return dict(zip(lengths.tolist(), counts.tolist(), strict=True))


def link(log: pl.DataFrame, embeddings: np.ndarray | None, rule: Rule) -> Chains:
    """Link a log's conversations to chains.

    Args:
        log: from `reading.load`: user, text, arrival, ended and row are used.
        embeddings: [texts, d] of the distinct first prompts; None where the threshold is 1.
        rule: what makes a retrial.

    Raises:
        LogError: the rule is out of range, or there are no embeddings and it needs them.
    """
    rule.check()
    if rule.threshold < 1 and embeddings is None:
        raise LogError(f"threshold={rule.threshold} needs embeddings; without them it can be 1.")
    user, text, arrival, ended, row = (
        log[name].to_numpy() for name in ("user", "text", "arrival", "ended", "row")
    )
    order = np.lexsort((row, arrival, user))
    starts = np.flatnonzero(np.diff(user[order], prepend=-1))
    before = np.full(len(user), -1)
    counts = np.zeros(3, np.int64)
    vectors = embeddings if rule.threshold < 1 else None
    for group in np.split(order, starts[1:]):
        if len(group) > 1:
            links, made = _link_user(text[group], arrival[group], ended[group], vectors, rule)
            before[group] = np.where(links >= 0, group[links], -1)
            counts += made
    members, first = _follow(before, arrival, row)
    return Chains(members, first, *counts.tolist())


def _link_user(
    text: np.ndarray, arrival: np.ndarray, ended: np.ndarray, embeddings: np.ndarray | None,
    rule: Rule,
) -> tuple[np.ndarray, tuple[int, int, int]]:  # fmt: skip
    """Link one user's conversations, which are in the order of arrival.

    Returns:
        The place of the one that each is a retrial of, -1 where none, and the counts of `Chains`.
    """
    size, gap = len(text), round(rule.min_gap * SECOND)
    before = np.full(size, -1)
    unresolved = np.ones(size, bool)
    identical = similar = early = 0
    own, text = np.unique(text, return_inverse=True)
    for i, alike in _asking_the_same(own, text, embeddings, rule.threshold):
        first = max(i - 1, 0) if rule.among == "adjacent" else 0
        asked = first + np.flatnonzero(unresolved[first:i] & alike[text[first:i]])
        over = asked[(ended[asked] < arrival[i]) & (ended[asked] + gap <= arrival[i])]
        if len(over):
            before[i] = over[-1]
            unresolved[over[-1]] = False
            identical += text[over[-1]] == text[i]
            similar += text[over[-1]] != text[i]
        else:
            early += len(asked) > 0
    return before, (int(identical), int(similar), int(early))


def _asking_the_same(
    own: np.ndarray, text: np.ndarray, embeddings: np.ndarray | None, threshold: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each conversation that asks what another does, and which texts count as its own.

    Args:
        own: [m] the user's distinct texts.
        text: [n] places in `own`.
        embeddings: of all texts; None: the same is what is identical.
        threshold: least cosine.
    """
    several = np.bincount(text) > 1
    if embeddings is None and not several.any():
        return
    unit = None if embeddings is None else _unit(embeddings[own])
    for begin in range(0, len(text), BLOCK):
        block = text[begin : begin + BLOCK]
        alone = len(block) == len(text)  # of most users; sorting once more would take longer
        some, where = (
            (np.arange(len(own)), text) if alone else np.unique(block, return_inverse=True)
        )
        same = some[:, None] == np.arange(len(own))
        if unit is not None:
            same |= unit[some] @ unit.T >= threshold
        worth = several[some] | (same.sum(axis=1) > 1)
        for place in np.flatnonzero(worth[where]):
            yield begin + int(place), same[where[place]]


def _follow(
    before: np.ndarray, arrival: np.ndarray, row: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the members of all chains, and where each begins, roots by arrival."""
    after = np.full(len(before), -1)
    linked = np.flatnonzero(before >= 0)
    after[before[linked]] = linked
    roots = np.flatnonzero(before < 0)
    roots = roots[np.lexsort((row[roots], arrival[roots]))]
    members, first = [], [0]
    for root in roots:
        node = root
        while node >= 0:
            members.append(node)
            node = after[node]
        first.append(len(members))
    return np.asarray(members, np.int64), np.asarray(first, np.int64)


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Return [n, d] float32 of length one."""
    whole = vectors.astype(np.float32)
    return whole / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-12)


def subsample(lengths: np.ndarray, singles: float, key: np.random.Generator) -> np.ndarray:
    """Keep all chains of two or more, and singletons until they are a share of what is kept.

    Args:
        lengths: [m] of all chains.
        singles: the share of chains of length one in what is kept, in [0, 1).
        key: which singletons are kept.

    Returns:
        [kept] chains, in increasing order; all singletons where there are too few.

    Raises:
        LogError: no chain has two conversations or more, or the share is out of range.
    """
    if not 0 <= singles < 1:
        raise LogError(f"singles={singles} must be a share of chains in [0, 1).")
    alone, longer = np.flatnonzero(lengths == 1), np.flatnonzero(lengths > 1)
    if not len(longer):
        raise LogError("no chain has two conversations or more: there are no retrials to replay.")
    wanted = min(len(alone), round(len(longer) * singles / (1 - singles)))
    kept = key.choice(alone, wanted, replace=False)
    return np.sort(np.concatenate([longer, kept]))
