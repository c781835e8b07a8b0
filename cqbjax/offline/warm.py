"""ACQB's prior from logs: theta_0 and V_0 of a seed's offline split, brought to its pool.

With f the contexts that ACQB sees (the embedding, perhaps through the head, perhaps with a constant
coordinate), n offline prompts F [n, e] and their departures,

    theta_0   the maximum likelihood of the departures, ridge-regularised (`logistic`),
    V_0       lambda0 I + weight F'F, for all servers, since every LLM answered every prompt,

ACQB starts at N(theta_0, alpha^2 V_0^-1) instead of N(0, alpha^2 I / lambda0), and its loss has
1/2 (theta_j - theta_0j)' V_0 (theta_j - theta_0j) in place of lambda0 / 2 |theta_j|^2. That is
ACQB itself on contexts sqrt(lambda0) V_0^(-1/2) x, whose utilities are known but for what is to be
learnt: x'theta_0 + x~'theta~. So nothing in ACQB knows of priors but the offset.
"""

import pathlib
from collections.abc import Mapping
from typing import IO, NamedTuple

import numpy as np
import scipy.linalg
import threadpoolctl

from cqbjax.core.files import memo
from cqbjax.datasets import Split
from cqbjax.offline.fits import ONE_THREAD, Data, fit_key
from cqbjax.offline.learnt import Warm
from cqbjax.offline.routers.logistic import fit_log_odds
from cqbjax.sweeping.progress import Reporter


class Prior(NamedTuple):
    """What a seed's pool knows from the offline split.

    Attributes:
        contexts: [I, e] sqrt(lambda0) V_0^(-1/2) f(x) of each prompt of the pool.
        offset: [I, N] f(x)'theta_0j.
    """

    contexts: np.ndarray
    offset: np.ndarray


def fit_prior(
    offline: np.ndarray, departure: np.ndarray, pool: np.ndarray,
    weight: float, ridge: float, lambda0: float,
) -> Prior:  # fmt: skip
    """Return the prior of a pool.

    Args:
        offline: [n, e] contexts f of the offline prompts.
        departure: [n, N] their departure probabilities.
        pool: [I, e] contexts of the pool's prompts.
        weight: what an offline prompt counts in V_0 beside a round's query.
        ridge: of the fit of theta_0.
        lambda0: ACQB's.
    """
    theta, _ = fit_log_odds(offline, departure, ridge, intercept=False)
    design = lambda0 * np.eye(offline.shape[1]) + weight * offline.T @ offline
    # V_0 = L L', so L^-T is a root of its inverse.
    root = scipy.linalg.cholesky(design, lower=True)
    whitened = scipy.linalg.solve_triangular(root, pool.T, lower=True).T
    return Prior(np.sqrt(lambda0) * whitened, pool @ theta.T)


def pool_priors(
    label: str, policy: Warm, data: Data, splits: Mapping[int, Split], progress: Reporter
) -> list[Prior]:
    """Return each seed's prior, fitted on its offline split or kept.

    Args:
        label: of the policy, for the progress bar.
        policy: its settings.
        data: from `fits.read`.
        splits: seed -> its split.
        progress: told of the fits.
    """
    features, by_seed = _features(label, policy, data, splits, progress), []
    with progress.steps(f"fitting {label}", len(splits)) as done:
        for seed, parts in splits.items():
            by_seed.append(_prior(policy, data, parts, seed, features[seed]))
            done(1)
    return by_seed


def _prior(policy: Warm, data: Data, parts: Split, seed: int, features: np.ndarray) -> Prior:
    words = ("warm", policy.settings, data.source.rho, data.source.departure_digest)
    path = data.folder / f"{fit_key(data, parts, seed, *words)}.npz"

    def fit() -> Prior:
        with threadpoolctl.threadpool_limits(ONE_THREAD):
            return fit_prior(
                features[parts.offline], data.source.probabilities[parts.offline],
                features[parts.pool], policy.weight, policy.ridge, float(policy.base.lambda0),
            )  # fmt: skip

    return memo(path, fit, _save, _load)


def _save(file: IO[bytes], prior: Prior) -> None:
    np.savez(file, **{name: part.astype(np.float32) for name, part in prior._asdict().items()})


def _load(path: pathlib.Path) -> Prior:
    with np.load(path) as kept:
        return Prior(**{name: kept[name] for name in Prior._fields})


def _features(
    label: str, policy: Warm, data: Data, splits: Mapping[int, Split], progress: Reporter
) -> Mapping[int, np.ndarray]:
    """Return f of every prompt [P, e] in float64, for each seed: the head is a seed's own."""
    if policy.head is None:
        same = policy.contexts(data.embeddings.astype(float))
        return dict.fromkeys(splits, same)
    from cqbjax.offline.heads import all_contexts

    projected = all_contexts(label, policy.head, data, splits, progress)
    return {seed: policy.contexts(each.astype(float)) for seed, each in projected.items()}
