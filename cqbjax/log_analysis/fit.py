"""Fit a scenario to a log: `cqbjax log fit`."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import scipy.stats
import threadpoolctl
from scipy.special import expit, logit

from cqbjax.log_analysis import departures, scenario
from cqbjax.log_analysis.departures import Attempts, ChosenContexts, OutcomeLevel, Overlap
from cqbjax.log_analysis.requests import RequestLog
from cqbjax.log_analysis.retries import Retries
from cqbjax.log_analysis.scenario import ScenarioArrays, Timing, correct_log_odds
from cqbjax.log_analysis.summary import estimate_share
from cqbjax.logs.shards import LogError

SOME = 100  # draws of which departures are averaged
FEWEST, FEWEST_USERS = 100, 30  # attempts whose outcome is known; users that are clusters
FEWEST_IN_AN_HOUR = 30  # attempts in an hour of the day whose retry rate is checked
# The share of retries that follow a failure, in public audits; swept in the report.
PRECISIONS = (1.0, 0.9, 0.78)


class LogFit(NamedTuple):
    """A scenario fitted to a log.

    Attributes:
        arrays: of the source.
        timing: of arrivals and service.
        about: what a scenario's file says of it.
        chosen: contexts and departures.
        overlap: who was shown what, and checks.
        level: at which level answers fail.
        notes: assumptions, each a sentence.
    """

    arrays: ScenarioArrays
    timing: Timing
    about: dict[str, Any]
    chosen: ChosenContexts
    overlap: Overlap
    level: OutcomeLevel
    notes: list[str]


# On a busy machine, threads that wait for each other take most of the time.
@threadpoolctl.threadpool_limits.wrap(limits=1)
def fit_log(
    log: RequestLog, retries: Retries, precision: float = 1.0, contexts: str | None = None,
    outcome: str | None = None, round_seconds: float | None = None, channels: int | None = None,
    arrivals: str = "trace", seed: int = 0,
) -> LogFit:  # fmt: skip
    """Fit a scenario.

    Args:
        log: from `read_log`.
        retries: from `find_retries`.
        precision: probability that a retry follows a failure.
        contexts: `none`, `statistics`, `words` or `embeddings`; None: the best.
        outcome: `attempt`, `query` or `prompt`; None: what repeated attempts show.
        round_seconds: as in `measure_timing`.
        channels: as in `measure_timing`.
        arrivals: `trace`, or `profile`: the log's rate at each hour of the day.
        seed: of the posterior's draws.

    Raises:
        LogError: the log has too few attempts whose outcome is known.
    """
    frame, number = log.frame, int(retries.labelled.sum())
    if number < FEWEST:
        raise LogError(f"{number} attempts have a known outcome, and a fit needs {FEWEST}.")
    every = _collect_attempts(log, retries)
    attempts = Attempts(*(part[retries.labelled] for part in every))
    candidates = departures.make_contexts(log)
    if contexts not in (None, *candidates):
        raise LogError(f"contexts={contexts} must be one of {', '.join(candidates)}.")
    chosen = departures.choose_contexts(attempts, candidates, len(log.models), contexts)
    mean, draws, chances, overlap = _debias(log, attempts, chosen, candidates, retries, seed)
    level = departures.find_outcome_level(
        retries.query[retries.labelled], retries.attempt[retries.labelled], attempts,
        chances[attempts.text, attempts.model],
    )  # fmt: skip
    timing, notes = scenario.measure_timing(
        log, retries, round_seconds, channels, arrivals == "profile"
    )
    # Retries that follow no failure are new queries.
    first = every.text[retries.before < 0]
    queries = frame.height - precision * (frame.height - len(first))
    timing = timing._replace(arrival_rate=timing.arrival_rate * queries / len(first))
    # Prompts of the pool: a sample of the queries, each as often as it came.
    order = np.random.default_rng(seed).permutation(len(first))
    sample = first[order[: scenario.MAX_PROMPTS]]
    x = chosen.contexts
    described = departures.standardize(np.column_stack([x, candidates.get("statistics", x)[:, 1:]]))
    low, high = _bound_satisfaction(log, attempts, retries, chances, departures.standardize(x))
    scale = float(np.linalg.norm(x, axis=1).max())
    arrays = ScenarioArrays(
        x[sample] / scale, draws * scale, mean * scale,
        _predict(log, "cost", described, sample), _predict(log, "latency", described, sample),
        low[sample], high[sample], overlap.supported[sample], overlap.propensities[sample],
    )  # fmt: skip
    about = {
        "log": f"a log of {frame.height:,} requests, hash {log.digest}", "models": log.models,
        "precision": precision, "outcome": outcome or level.level,
        "round_seconds": timing.round_seconds, "arrival_rate": timing.arrival_rate,
        "channels": timing.channels, "attempts_a_query": frame.height / queries,
        "rows": frame.height, "queries": round(queries),
        "priced": frame["cost"].null_count() < frame.height,
    } | _measure_rates(log, every, attempts, precision)  # fmt: skip
    about |= _measure_parity(log, retries, attempts, chances) if log.timed else {}
    return LogFit(arrays, timing, about, chosen, overlap, level, notes)


def _collect_attempts(log: RequestLog, retries: Retries) -> Attempts:
    """Return all attempts. A retry is as good as the prompt that began its query."""
    users, text = log.frame["user"].to_numpy(), log.frame["text"].to_numpy()[retries.query]
    # Too few users do not show how they differ.
    known = (users >= 0) & (len(np.unique(users)) >= FEWEST_USERS)
    return Attempts(
        text.astype(int), log.frame["model"].to_numpy().astype(int), 1.0 - retries.retried,
        np.where(known, users, len(users) + retries.query),
    )  # fmt: skip


def _debias(
    log: RequestLog, attempts: Attempts, chosen: ChosenContexts,
    candidates: Mapping[str, np.ndarray], retries: Retries, seed: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Overlap]:  # fmt: skip
    """Move each LLM's departures towards the doubly robust estimate.

    Returns:
        The coefficients' mean [N, E] and draws [D, N, E] after the correction, the fitted chances
        [texts + 1, N] before it, and the overlap.
    """
    x, number = chosen.contexts, len(log.models)
    mean = np.einsum("k,kne->ne", chosen.weights, [one.mean for one in chosen.fits])
    draws = chosen.draw(np.random.default_rng(seed), scenario.DRAWS)
    chances, values = np.zeros((len(x), number)), np.zeros((SOME, number))
    for drawn, value in zip(draws, values, strict=False):
        chance = expit(x @ drawn.T)
        chances += chance / SOME
        value[:] = chance[attempts.text].mean(axis=0)
    logged = log.frame["propensity"].to_numpy()[retries.labelled]
    known = None if np.isnan(logged.astype(float)).any() else logged
    # Propensities follow the prompt even where departures do not.
    routed = candidates.get("words", x) if chosen.name == "none" else x
    overlap = departures.check_overlap(
        attempts, routed, chances, values.std(axis=0), known, log.models
    )
    slope = (chances * (1 - chances))[attempts.text].mean(axis=0)
    bias, error = (one / slope for one in departures.estimate_bias(overlap.table))
    mean[:, 0] += bias
    noise = np.random.default_rng(seed + 1).standard_normal(draws.shape[:2])
    draws[:, :, 0] += bias + error * noise
    return mean, draws, chances, overlap


def _predict(log: RequestLog, column: str, contexts: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Return a column's mean for each prompt and LLM, by ridge regression on prompts: [P, N].

    The mean over all requests is not enough: an LLM that got the long prompts, whose answers have
    many tokens, looks expensive and slow.

    Args:
        log: from `read_log`.
        column: `cost`, or `latency`; the mean of all LLMs where one has none.
        contexts: [texts + 1, E].
        sample: [P] texts.
    """
    from sklearn.linear_model import RidgeCV

    means = np.full((len(sample), len(log.models)), log.frame[column].mean() or 0.0)
    for (j,), rows in log.frame.filter(pl.col(column).is_not_null()).group_by("model"):
        value, x = rows[column].to_numpy(), contexts[rows["text"].to_numpy()]
        means[:, j] = value.mean()
        if len(value) > 2 * x.shape[1]:
            ridge = RidgeCV(np.logspace(0, 4, 5)).fit(x, value)
            means[:, j] = np.clip(ridge.predict(contexts[sample]), 0.1 * value.mean(), value.max())
    return means


def _measure_rates(
    log: RequestLog, every: Attempts, attempts: Attempts, precision: float
) -> dict[str, Any]:
    """Return how often requests are retried, of all and by LLM, and the error of mean prices.

    `retried` is corrected for retries that follow no failure, `retry_rate` is not; `price_errors`
    are the standard errors of the LLMs' mean costs, relative to these.
    """
    rate = 1 - attempts.departs.mean()
    shares = np.bincount(every.model, every.departs) / np.bincount(every.model)
    retried = 1 - expit(correct_log_odds(logit(shares), precision, rate))
    cost = pl.col("cost")
    error = (cost.std() / cost.count().sqrt() / cost.mean()).fill_nan(0.0).fill_null(0.0)
    errors = log.frame.group_by("model").agg(error).sort("model")["cost"].to_list()
    by_model = dict(zip(log.models, retried.tolist(), strict=True))
    return {"retried": by_model, "retry_rate": rate, "price_errors": errors}


def _measure_parity(
    log: RequestLog, retries: Retries, attempts: Attempts, chances: np.ndarray
) -> dict[str, Any]:
    """Return what the log's own policy has to give back, besides attempts and retry rates.

    `stay`: seconds from a query's first request to its last answer, `latency` of an answer, and
    `pause` from an answer to its retry, on average; `hour`: the hour of the day whose retry rate is
    furthest from the fit's, both rates, and the p-value among all hours, of those with enough
    attempts.
    """
    begin, end = log.frame["time"].to_numpy(), log.frame["ended"].to_numpy()
    first, query = np.unique(retries.query, return_inverse=True)
    last = np.zeros(len(first))
    np.maximum.at(last, query, end)
    hour = (begin[retries.labelled] // 3600 % 24).astype(int)
    chance = chances[attempts.text, attempts.model]
    number, logged, fitted, spread = (
        np.bincount(hour, weight, 24)
        for weight in (None, 1 - attempts.departs, 1 - chance, chance * (1 - chance))
    )
    usual = number > FEWEST_IN_AN_HOUR
    scores = abs(logged - fitted) / np.sqrt(spread + 1e-9) * usual
    worst = int(scores.argmax())
    tail = float(min(1.0, 2 * usual.sum() * scipy.stats.norm.sf(scores[worst])))
    rates = [float(part[worst] / max(number[worst], 1)) for part in (logged, fitted)]
    return {
        "stay": float((last - begin[first])[retries.labelled[first]].mean()),
        "latency": float((end - begin).mean()),
        "pause": float(retries.gaps.mean()) if len(retries.gaps) else None,
    } | ({"hour": [worst, *rates, tail]} if usual.any() else {})


def _bound_satisfaction(
    log: RequestLog, attempts: Attempts, retries: Retries, chances: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds on the probability that a departed query was satisfied: [texts + 1, N] twice.

    With outcomes, they are 95% intervals by LLM, where each outcome counts for all requests whose
    users rate as rarely: P(rated) is a logistic regression on the LLM, the prompt, and whether the
    query departs. Without outcomes, everyone may be satisfied; or all who depart from the worst
    answer abandon, and the probability a of abandoning is the same everywhere:
    P(satisfied | departs) = (p - a) / (1 - a) / p.
    """
    from sklearn.linear_model import LogisticRegression

    outcome = log.frame["outcome"].filter(retries.labelled)
    rated, good = outcome.is_not_null().to_numpy(), outcome.fill_null(0.0).to_numpy()
    least = float(chances[:-1].min()) if len(chances) > 1 else float(chances.min())
    low = (chances - least) / (1 - least) / chances
    high = np.ones_like(chances)
    if not rated.any():
        return np.clip(low, 0, 1), high
    weight = np.ones(len(rated))
    if not rated.all():
        features = np.column_stack([
            x[attempts.text], attempts.model[:, None] == np.arange(len(log.models)),
            attempts.departs,
        ])  # fmt: skip
        raters = LogisticRegression(max_iter=200).fit(features, rated)
        weight = 1 / np.maximum(raters.predict_proba(features)[:, 1], 0.2 * rated.mean())
    for j in range(len(log.models)):
        mine = (attempts.model == j) & rated & (attempts.departs > 0)
        own = weight[mine]
        effective = own.sum() ** 2 / max((own**2).sum(), 1e-12)
        share = (own * good[mine]).sum() / max(own.sum(), 1e-12)
        _, low[:, j], high[:, j] = estimate_share(share * effective, effective)
    return low, high


def report(fit: LogFit) -> Iterator[str]:
    """Yield the lines of a fit's report, what is wrong first."""
    table = fit.overlap.table
    for row in table.filter("disagree").iter_rows(named=True):
        yield (
            f"DISAGREE: {row['LLM']} departs with {row['model']:.3f} by the model and "
            f"{row['DR']:.3f} ({row['DR_error']:.3f}) by the doubly robust estimate"
        )
    for row, compared in zip(table.iter_rows(named=True), fit.arrays.supported.T, strict=True):
        if not compared.all():
            yield (
                f"NOT COMPARED: {row['LLM']} with {1 - compared.mean():.1%} of the prompts, which "
                "it was hardly ever shown"
            )
    gains = ", ".join(
        f"{name} {gain:+.4f} ({error:.4f})" for name, (gain, error) in fit.chosen.gains.items()
    )
    yield (
        f"Contexts: {fit.chosen.name}; gain in log-likelihood per attempt (and its error): "
        f"{gains}; users widen the covariance {fit.chosen.fits[0].design_effect:.2f} times"
    )
    x, mean = fit.arrays.contexts, fit.arrays.mean
    chances = expit(x @ mean.T)
    yield (
        f"Value of contexts: departures per attempt {chances.max(axis=1).mean():.3f} with the best "
        f"LLM of each prompt, {chances.mean(axis=0).max():.3f} with the best LLM for all prompts, "
        f"{(chances * fit.arrays.routing).sum(axis=1).mean():.3f} with the LLMs of the log"
    )
    level = fit.level
    yield (
        f"Failures are drawn per {fit.about['outcome']}: relative to independent attempts, "
        f"{level.repeats:,} retries with an LLM that had failed the query depart {level.ratio:.2f} "
        f"times as often, and retries with another LLM {level.other_ratio:.2f} times as often"
    )
    timing = fit.timing
    yield (
        f"Rounds of {timing.round_seconds:.3g} s, {timing.arrival_rate:.3g} queries a round, "
        f"{timing.channels} channels, retries after {np.median(timing.gaps):.3g} s (median)"
    )
    yield from fit.notes


def tabulate_departures(fit: LogFit) -> pl.DataFrame:
    """Return a row for each LLM: the departure probability of an attempt, by several estimates.

    `precision P`: by the model, if a share P of the retries follow a failure.
    """
    table, rate = fit.overlap.table, fit.about["retry_rate"]
    logits = logit(table["model"].to_numpy())
    rows = table.select("LLM", "model", "DR", "IPS", "SNIPS", "effective").with_columns(
        (pl.col(name) + sign * 1.96 * table[f"{name}_error"]).alias(f"{name}_{end}")
        for name in ("model", "DR") for end, sign in (("low", -1), ("high", 1))
    )  # fmt: skip
    swept = {f"precision {p}": expit(correct_log_odds(logits, p, rate)) for p in PRECISIONS}
    return rows.with_columns(**swept)
