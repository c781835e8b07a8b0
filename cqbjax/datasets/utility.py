"""From scores and costs to departure probabilities and MNL utilities.

Follows the paper's appendix "Modeling departure and choice probabilities for offline routing
dataset experiments". The paper says that the cost is normalised to [0, 1] and not how; the rule is
therefore an argument everywhere, and docs/notebook/datasets.md compares the rules and argues the
default.
"""

import numpy as np

COST_RULES = (
    "server_mean",
    "global_max",
    "global_min_max",
    "prompt_max",
    "prompt_min_max",
    "server_mean_max",
    "none",
)
DEFAULT_COST_RULE = "global_max"


def normalise_cost(cost: np.ndarray, rule: str = DEFAULT_COST_RULE) -> np.ndarray:
    """Bring costs to [0, 1] by one of `COST_RULES`.

    Args:
        cost: [P, N] USD a query, not negative.
        rule: `global_max`: divided by the dearest cell; `server_mean`: that, averaged over a
            server's prompts (one cost an LLM, in units of the dearest cell); `server_mean_max`:
            a server's mean divided by the dearest server's mean; `global_min_max`: the cheapest
            cell is 0, the dearest 1; `prompt_max` and `prompt_min_max`: the same within each
            prompt; `none`: USD as they are (they must not exceed 1).

    Returns:
        [P, N] float64 in [0, 1]. Where a rule's scale is zero (all costs equal) the cost is 0:
        it then cannot tell servers apart.

    Raises:
        ValueError: an unknown rule, a cost that is negative or not finite, or USD above 1 under
            `none`.
    """
    cost = np.asarray(cost, np.float64)
    if not np.isfinite(cost).all() or (cost < 0).any():
        raise ValueError("cost must be finite and not negative in every cell.")
    if rule == "none":
        if cost.max() > 1:
            raise ValueError(f"cost_rule=none needs costs in [0, 1] USD a query, got {cost.max()}.")
        return cost.copy()
    if rule == "global_max":
        return _ratio(cost, cost.max())
    if rule == "server_mean":
        return np.broadcast_to(_ratio(cost, cost.max()).mean(axis=0), cost.shape).copy()
    if rule == "server_mean_max":
        mean = cost.mean(axis=0)
        return np.broadcast_to(_ratio(mean, mean.max()), cost.shape).copy()
    if rule == "global_min_max":
        return _ratio(cost - cost.min(), cost.max() - cost.min())
    high = cost.max(axis=1, keepdims=True)
    if rule == "prompt_max":
        return _ratio(cost, high)
    if rule == "prompt_min_max":
        low = cost.min(axis=1, keepdims=True)
        return _ratio(cost - low, high - low)
    raise ValueError(f"cost_rule must be one of {', '.join(COST_RULES)}, got {rule!r}.")


def raw_utility(performance: np.ndarray, cost: np.ndarray, rho: float = 5.0) -> np.ndarray:
    """Return perf - rho * cost, the appendix's raw utility.

    Args:
        performance: [P, N] in [0, 1].
        cost: [P, N] normalised, in [0, 1].
        rho: how much a unit of normalised cost weighs against a unit of performance.

    Returns:
        [P, N].

    Raises:
        ValueError: rho is negative or not finite, or the shapes differ.
    """
    if not (np.isfinite(rho) and rho >= 0):
        raise ValueError(f"rho must be finite and not negative, got {rho}.")
    if np.shape(performance) != np.shape(cost):
        raise ValueError(
            f"performance {np.shape(performance)} and cost {np.shape(cost)} differ in shape."
        )
    return np.asarray(performance, np.float64) - rho * np.asarray(cost, np.float64)


def departure_probabilities(
    performance: np.ndarray,
    cost: np.ndarray,
    rho: float = 5.0,
    low: float = 0.1,
    high: float = 0.99,
    cost_rule: str = DEFAULT_COST_RULE,
    equal_rows: float = 0.5,
    min_max: bool = True,
) -> np.ndarray:
    """Return u_j(xi) = low + (high - low) * min-max over servers of perf - rho * cost.

    So the best server of every prompt satisfies with probability `high`, also where none is right.

    Args:
        performance: [P, N] in [0, 1].
        cost: [P, N] USD a query; normalised here by `cost_rule`.
        rho: weight of the cost.
        low: departure probability of a prompt's worst server, r_lo.
        high: departure probability of a prompt's best server, r_hi.
        cost_rule: one of `COST_RULES`.
        equal_rows: normalised utility, in [0, 1], of a prompt whose servers are all equally
            useful. The paper's min-max is 0/0 there; the middle neither rewards nor punishes
            a router for a prompt on which routing cannot matter.
        min_max: the paper's; False: perf - rho * cost itself, cut to [0, 1], so that a prompt that
            no server gets right has no good server.

    Returns:
        [P, N] in [low, high].

    Raises:
        ValueError: not 0 < low < high < 1, equal_rows outside [0, 1], or a missing score.
    """
    if not 0 < low < 1:
        raise ValueError(f"low={low} must lie between 0 and 1.")
    if not low < high < 1:
        raise ValueError(f"high={high} must lie between low={low} and 1.")
    if not 0 <= equal_rows <= 1:
        raise ValueError(f"equal_rows must be in [0, 1], got {equal_rows}.")
    utility = raw_utility(performance, normalise_cost(cost, cost_rule), rho)
    if not np.isfinite(utility).all():
        raise ValueError("performance must be finite in every cell: complete the table first.")
    if not min_max:
        return low + (high - low) * np.clip(utility, 0.0, 1.0)
    worst = utility.min(axis=1, keepdims=True)
    spread = utility.max(axis=1, keepdims=True) - worst
    # Equality up to rounding: perf - rho * cost of equal servers may differ in the last bits.
    apart = spread > 1e-12 * np.maximum(1.0, np.abs(worst))
    normalised = np.where(apart, (utility - worst) / np.where(apart, spread, 1.0), equal_rows)
    return low + (high - low) * normalised


def mnl_utilities(probabilities: np.ndarray) -> np.ndarray:
    """Return log(u / (1 - u)), the latent reward x'theta_j whose logistic is u (appendix).

    Args:
        probabilities: [P, N] in (0, 1).

    Raises:
        ValueError: a probability is not strictly between 0 and 1.
    """
    probabilities = np.asarray(probabilities, np.float64)
    if not ((probabilities > 0) & (probabilities < 1)).all():
        raise ValueError("probabilities must lie strictly between 0 and 1.")
    return np.log(probabilities) - np.log1p(-probabilities)


def _ratio(part: np.ndarray, whole: np.ndarray | float) -> np.ndarray:
    """Divide, with 0 where the whole is 0."""
    whole = np.broadcast_to(np.asarray(whole, np.float64), part.shape)
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)
