"""Which LLM was shown to which prompts, and off-policy checks of the fitted departures.

For each LLM j, the value V_j = mean over attempts of P(departs | prompt, j) is estimated by the
model, and by inverse propensities (IPS), self-normalised (SNIPS), and doubly robust (DR):

    V_j^DR = mean( q_j(x) + 1{a = j} (y - q_j(x)) / e_j(x) ).
"""

from typing import NamedTuple

import numpy as np
import polars as pl

from cqbjax.log_analysis.departures import Attempts, standardize

CLUSTERS = 8  # kinds of prompt
RARE = 0.01  # share of an LLM's attempts with a kind of prompt: if less, it is not compared there
SMALL = 1e-3  # the least propensity in a weight
DISAGREE = 3.0  # standard errors


class Overlap(NamedTuple):
    """Overlap and checks.

    Attributes:
        propensities: [texts + 1, N] estimated probabilities of each LLM.
        supported: [texts + 1, N] whether an LLM is compared on a prompt: its share of the attempts
            with such prompts is at least `RARE`, both by kinds and by estimated propensities.
        table: a row for each LLM: values and errors, effective sample size.
    """

    propensities: np.ndarray
    supported: np.ndarray
    table: pl.DataFrame


def check_overlap(
    attempts: Attempts, contexts: np.ndarray, chances: np.ndarray, errors: np.ndarray,
    logged: np.ndarray | None, names: tuple[str, ...],
) -> Overlap:  # fmt: skip
    """Estimate propensities, and compare the model's departures with off-policy estimates.

    Args:
        attempts: n attempts.
        contexts: [texts + 1, E].
        chances: [texts + 1, N] fitted departure probabilities.
        errors: [N] standard error of the model's V_j.
        logged: [n] propensities of the chosen LLMs in the log, or None.
        names: [N] of LLMs.
    """
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression

    number, text, contexts = len(names), attempts.text, standardize(contexts)
    propensities = np.ones((len(contexts), number))
    if len(np.unique(attempts.model)) > 1:
        law = LogisticRegression(max_iter=200).fit(contexts[text], attempts.model)
        propensities[:] = 0.0
        propensities[:, law.classes_] = law.predict_proba(contexts)
    cluster = np.zeros(len(contexts), int)
    if contexts.shape[1] > 1 and len(contexts) > CLUSTERS:
        cluster = KMeans(CLUSTERS, n_init=1, random_state=0).fit_predict(contexts)
    pairs = cluster[text] * number + attempts.model
    counts = np.bincount(pairs, minlength=number * (cluster.max() + 1)).reshape(-1, number)
    chosen = propensities[text, attempts.model] if logged is None else logged
    weight = 1 / np.maximum(chosen, SMALL)
    rows, chose = [], attempts.model[:, None] == np.arange(number)
    # Small propensities may be estimated too small: what happened there decides.
    low = propensities[text] < RARE
    rare = low.any(axis=0) & ((low & chose).sum(axis=0) < RARE * low.sum(axis=0))
    for j, name in enumerate(names):
        mine = chose[:, j]
        own, model = np.where(mine, weight, 0.0), chances[text, j]
        robust = model + own * (attempts.departs - model)
        value, error = _mean_by_user(robust, attempts.group)
        bias, bias_error = _mean_by_user(robust - model, attempts.group)
        rows.append({
            "LLM": name, "model": model.mean(), "model_error": errors[j], "DR": value,
            "DR_error": error, "bias": bias, "bias_error": bias_error,
            "IPS": (own * attempts.departs).mean(),
            "SNIPS": (own * attempts.departs).sum() / max(own.sum(), 1e-12),
            "effective": own.sum() ** 2 / max((own**2).sum(), 1e-12),
            "disagree": bool(abs(value - model.mean()) > DISAGREE * np.hypot(error, errors[j])),
        })  # fmt: skip
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    supported = (propensities >= RARE) | ~rare
    supported &= shares[cluster] >= RARE
    return Overlap(propensities, supported, pl.DataFrame(rows))


def estimate_bias(table: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the bias of the model's V_j that the doubly robust estimates show: [N].

    It is shrunk: biases b_j ~ N(0, t^2) are seen with their standard errors, and t^2 is what they
    vary more than these. Also return the standard error that remains: [N].
    """
    bias, error = (table[name].to_numpy() for name in ("bias", "bias_error"))
    spread = max(float((bias**2 - error**2).mean()), 0.0)
    share = spread / np.maximum(spread + error**2, 1e-12)
    return share * bias, np.sqrt(share) * error


def _mean_by_user(values: np.ndarray, group: np.ndarray) -> tuple[float, float]:
    """Return the mean of values, and its standard error by users."""
    index = np.unique(group, return_inverse=True)[1]
    centred = np.bincount(index, values - values.mean())
    return float(values.mean()), float(np.sqrt((centred**2).sum()) / len(values))
