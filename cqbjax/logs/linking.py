"""The linking rule: which conversation is a retrial of which, and the retry chains that follow.

Retrials are not marked in a log. A user's conversations are taken in the order of their inferred
arrivals. Each is linked to the latest earlier one of the same user that

    is unresolved:     no conversation is linked to it yet,
    had ended:         its last assistant response is earlier than the new arrival, by `min_gap`,
    has the same text: the first prompts are identical, or their embeddings have
                       cosine >= threshold.

Similarity is computed within a user, of distinct texts, a block of rows at a time, so that no
matrix of all pairs is ever in memory.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from cqbjax.logs.conversations import SECOND
from cqbjax.logs.shards import LogError

Among = Literal["open", "adjacent"]
BLOCK = 1024  # conversations of a user whose similarities are in memory at once


class LinkingRule(NamedTuple):
    """When a conversation is a retrial of an earlier one.

    Attributes:
        threshold: least cosine of the first prompts; at 1 they must be identical.
        min_gap: least seconds from the last response of the earlier to the arrival of the later.
        among: `open` considers all unresolved conversations of the user, `adjacent` only the
            previous one, as if another question had resolved all earlier ones.
    """

    threshold: float = 0.995
    min_gap: float = 0.0
    among: Among = "open"

    def check(self) -> None:
        """Raise a `LogError` naming the key that is out of range and what is allowed."""
        if not 0 < self.threshold <= 1:
            raise LogError(f"threshold={self.threshold} must be a cosine in (0, 1].")
        if not 0 <= self.min_gap < float("inf"):
            raise LogError(f"min_gap={self.min_gap} must be seconds, and not negative.")
        if self.among not in ("open", "adjacent"):
            raise LogError(f"among={self.among} must be open or adjacent.")


class Chains(NamedTuple):
    """Retry chains, ordered by the arrival of their first conversations.

    Attributes:
        members: [n] int64 rows of the log's frame, chain by chain, each in order.
        first: [m + 1] int64 index in `members` at which each chain begins.
        identical: linked pairs with identical prompts.
        similar: pairs linked by the cosine alone.
        early: unlinked conversations with the same text as an unresolved one that had not ended
            (or not by `min_gap`).
    """

    members: np.ndarray
    first: np.ndarray
    identical: int
    similar: int
    early: int

    @property
    def lengths(self) -> np.ndarray:
        """Conversations of each chain, [m]."""
        return np.diff(self.first)


def link_conversations(
    log: pl.DataFrame, embeddings: np.ndarray | None, rule: LinkingRule
) -> Chains:
    """Link a log's conversations to retry chains; arguments and errors are `find_retrials`'."""
    before, counts = find_retrials(log, embeddings, rule)
    after = np.full(len(before), -1)
    linked = np.flatnonzero(before >= 0)
    after[before[linked]] = linked
    roots = log.with_row_index("index").filter(before < 0).sort("arrival", "row")["index"]
    members, first = [], [0]
    for node in roots:
        while node >= 0:
            members.append(node)
            node = after[node]
        first.append(len(members))
    return Chains(np.asarray(members, np.int64), np.asarray(first, np.int64), *counts)


def find_retrials(
    log: pl.DataFrame, embeddings: np.ndarray | None, rule: LinkingRule
) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Find the conversation that each one is a retrial of.

    Args:
        log: the `CONVERSATIONS` of `read_log`: user, text, arrival, ended and row are used.
        embeddings: [texts, d] embeddings of the distinct first prompts; None if the threshold is 1.
        rule: defines a retrial.

    Returns:
        [n] indices in the log, -1 if none, and the counts of `Chains`.

    Raises:
        LogError: the rule is out of range, or needs embeddings that do not exist.
    """
    rule.check()
    if rule.threshold < 1 and embeddings is None:
        raise LogError(f"threshold={rule.threshold} needs embeddings; without them it can be 1.")
    user, text, arrival, ended, row = (
        log[name].to_numpy() for name in ("user", "text", "arrival", "ended", "row")
    )
    order = np.lexsort((row, arrival, user))
    starts = np.flatnonzero(np.diff(user[order], prepend=-1))
    before, early = np.full(len(user), -1), 0
    vectors = embeddings if rule.threshold < 1 else None
    for group in np.split(order, starts[1:]):
        if len(group) > 1:
            links, others = _link_user(text[group], arrival[group], ended[group], vectors, rule)
            before[group] = np.where(links >= 0, group[links], -1)
            early += others
    linked = np.flatnonzero(before >= 0)
    identical = int((text[linked] == text[before[linked]]).sum())
    return before, (identical, len(linked) - identical, early)


def _link_user(
    text: np.ndarray, arrival: np.ndarray, ended: np.ndarray, embeddings: np.ndarray | None,
    rule: LinkingRule,
) -> tuple[np.ndarray, int]:  # fmt: skip
    """Link one user's conversations, which are in the order of arrival.

    Returns:
        The index of the conversation that each is a retrial of, -1 if none, and `Chains.early`.
    """
    gap, early = round(rule.min_gap * SECOND), 0
    before, unresolved = np.full(len(text), -1), np.ones(len(text), bool)
    distinct, text = np.unique(text, return_inverse=True)
    for i, same in _find_same_texts(distinct, text, embeddings, rule.threshold):
        first = max(i - 1, 0) if rule.among == "adjacent" else 0
        candidates = first + np.flatnonzero(unresolved[first:i] & same[text[first:i]])
        ends = ended[candidates]
        ended_before = candidates[(ends < arrival[i]) & (ends + gap <= arrival[i])]
        if len(ended_before):
            before[i] = ended_before[-1]
            unresolved[before[i]] = False
        else:
            early += len(candidates) > 0
    return before, early


def _find_same_texts(
    distinct: np.ndarray, text: np.ndarray, embeddings: np.ndarray | None, threshold: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each conversation whose text counts as that of another, and those distinct texts.

    Args:
        distinct: [m] the user's distinct texts.
        text: [n] indices in `distinct`.
        embeddings: embeddings of all texts; None: only identical texts are the same.
        threshold: least cosine.

    Yields:
        Index of the conversation, and [m] bool, True if a distinct text is the same.
    """
    repeated = np.bincount(text) > 1
    if embeddings is None and not repeated.any():
        return
    unit = None
    if embeddings is not None:
        unit = embeddings[distinct].astype(np.float32)
        unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    for begin in range(0, len(text), BLOCK):
        block = text[begin : begin + BLOCK]
        # A single block, as most users have, is not sorted again.
        rows, where = np.arange(len(distinct)), text
        if len(block) < len(text):
            rows, where = np.unique(block, return_inverse=True)
        same = rows[:, None] == np.arange(len(distinct))
        if unit is not None:
            same |= unit[rows] @ unit.T >= threshold
        found = repeated[rows] | (same.sum(axis=1) > 1)
        for place in np.flatnonzero(found[where]):
            yield begin + int(place), same[where[place]]


def singleton_share(lengths: np.ndarray, singles: float) -> float:
    """Return the share of singletons that `subsample` draws."""
    single, longer = int((lengths == 1).sum()), int((lengths > 1).sum())
    return min(1.0, longer * singles / (1 - singles) / max(single, 1))


def subsample(lengths: np.ndarray, singles: float, key: np.random.Generator) -> np.ndarray:
    """Draw singletons to be a share of all chains, beside every chain of two or more.

    Args:
        lengths: [m] lengths of all chains.
        singles: the share of chains of length one in the result, in [0, 1).
        key: draws the singletons.

    Returns:
        Chains in increasing order; all singletons if there are too few.

    Raises:
        LogError: no chain has two conversations or more, or the share is out of range.
    """
    if not 0 <= singles < 1:
        raise LogError(f"singles={singles} must be a share of chains in [0, 1).")
    single, longer = np.flatnonzero(lengths == 1), np.flatnonzero(lengths > 1)
    if not len(longer):
        raise LogError("no chain has two conversations or more: there are no retrials to replay.")
    wanted = min(len(single), round(len(longer) * singles / (1 - singles)))
    return np.sort(np.concatenate([longer, key.choice(single, wanted, replace=False)]))
