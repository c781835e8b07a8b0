"""Compare policies in a fitted scenario, with what the log leaves open: `cqbjax log compare`.

Each seed draws its own coefficients from the posterior. For policy p and draw d, z_pd is the share
of the policy's attempts that depart, and rho_pd its load: the arrival rate over the rate at which
its queue grows without end. A measured value y of seed s, with draw d(s), follows

    log y_ps = a_p - b log z_pd(s) + c log q(rho_pd(s)) + noise,

with one b and one c for all policies, and with the queue q of one channel after n arrivals:
q^2 / n + (1 - rho) q = rho, which is rho / (1 - rho) in the limit if rho < 1. The fitted values of
all draws are what only more data would shrink; the residual variance over S is what more seeds
would.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import scipy.special
import xarray as xr
import yaml
from jax import Array
from matplotlib.figure import Figure

from cqbjax.core import rng
from cqbjax.core.pytree import pytree
from cqbjax.core.recorders import Recorder
from cqbjax.core.recorders.answers import chosen_server
from cqbjax.core.recorders.protocol import Round
from cqbjax.core.types import Action, Needs, Observation, Problem
from cqbjax.engine.sweep import sweep
from cqbjax.log_analysis.scenario import ScenarioArrays, correct_log_odds, draw_number
from cqbjax.policies import RandomRouting, RouterPolicy
from cqbjax.policies.assortments import choose_query_and_servers, init_stateless, update_stateless

TODAY = "today"
LEARNING = ["greedy", "acqb", "ucb_fallback_least_served"]  # labels
MAX_FIXED = 3  # LLMs that are compared as the only one
DRAWS = 4000  # of the means, for the probability of being the best
BEST = 0.8  # the probability from which a policy is called the best
CLOSE = 0.1  # share of the range of policies within which two are as good
UNSUPPORTED = 0.05  # share of attempts that the log does not support
INNER = (0.025, 0.975)  # quantiles of an interval
STEEPEST = 5.0  # standard deviation of the slopes b and c
UNLIKELY = 0.01  # of a posterior predictive p-value


@pytree
class LoggedRouting:
    """The routing of a log: LLMs at random with its propensities, first in first out.

    Attributes:
        probabilities: [P, N] of each LLM for each prompt.
    """

    probabilities: Array

    needs = Needs(contexts=False)
    init = staticmethod(init_stateless)
    update = staticmethod(update_stateless)

    def select(self, key: Array, state: tuple[()], observation: Observation) -> Action:
        """Select the oldest query, and draw its LLM."""
        logs = jnp.log(jnp.maximum(self.probabilities[observation.prompts], 1e-9))
        own = rng.stream_key(key, rng.Stream.ASSORTMENT)
        drawn = logs + jax.random.gumbel(own, logs.shape)
        slot, servers = choose_query_and_servers("oldest", observation, drawn, jnp.zeros(()))
        return Action(slot, jnp.stack(servers), jnp.bool_(False))


@dataclasses.dataclass(frozen=True)
class AnswersByPrompt(Recorder):
    """Attempts and departures of each prompt and LLM: [2, P, N]."""

    name, label, unit, per = "by_prompt", "Attempts and departures", "attempts", "run"
    dims = ("ended", "prompt", "server")

    def start(self, problem: Problem) -> Array:
        """Return zero counts."""
        return jnp.zeros((2, problem.num_prompts, problem.num_servers), jnp.int32)

    def update(self, state: Array, round_: Round) -> Array:
        """Count the attempts that ended, and those after which the query departed."""
        prompt = round_.workload.prompts[round_.before.row[round_.action.slot]]
        server = chosen_server(round_)
        state = state.at[0, prompt, server].add(round_.valid.astype(jnp.int32))
        return state.at[1, prompt, server].add(round_.departed.astype(jnp.int32))


class Comparison(NamedTuple):
    """Policies compared.

    Attributes:
        labels: of the policies.
        outcomes: what each policy gives in each seed, from `_read_outcomes`.
        expected: [policies, D] share of a policy's attempts that depart, by each draw.
        numbers: [S] the draw of each seed.
        rates: [S, N] retry rate of each LLM's answers, as the log's policy plays.
        about: description of the fit.
        errors: [N] standard error of each LLM's departures.
        price_covariance: [policies, policies] of USD a query, by the errors of mean prices.
        arrivals: queries until the middle of the rounds that are measured.
        service: rounds of an attempt of today's policy, on average.
    """

    labels: list[str]
    outcomes: dict[str, np.ndarray]
    expected: np.ndarray
    numbers: np.ndarray
    rates: np.ndarray
    about: Mapping[str, Any]
    errors: np.ndarray
    price_covariance: np.ndarray
    arrivals: float
    service: float


def make_candidates(arrays: ScenarioArrays, models: list[str]) -> dict[str, Any]:
    """Return today's policy, single LLMs and the fitted router; with one LLM only schedules."""
    prompts, number = len(arrays.contexts), len(models)
    if number == 1:
        schedules: tuple[Any, ...] = ("newest", "least_served", "random")
        others = {name: RandomRouting(schedule=name) for name in schedules}
        return {TODAY: RandomRouting(schedule="oldest"), **others}
    log_odds = arrays.contexts @ arrays.mean.T
    chosen: dict[str, Any] = {
        TODAY: LoggedRouting(probabilities=jnp.asarray(arrays.routing, float))
    }
    for j in np.argsort(-scipy.special.expit(log_odds).mean(axis=0))[:MAX_FIXED]:
        only = jnp.tile((jnp.arange(number) == j).astype(float), (prompts, 1))
        chosen[f"only {models[j]}"] = RouterPolicy(scores=only)
    scores = jnp.asarray(log_odds, float)
    chosen["fitted router"] = RouterPolicy(scores=scores, schedule="least_served", retry="fallback")
    return chosen


def compare(
    arrays: ScenarioArrays, about: Mapping[str, Any], source: Any, arrival_rate: float,
    service: Any, learning: Mapping[str, Any], seeds: int, horizon: int,
) -> Comparison:  # fmt: skip
    """Run the candidates and policies that learn in the scenario.

    Args:
        arrays: of the scenario.
        about: its description.
        source: the scenario, with arrivals and dynamics.
        arrival_rate: queries a round.
        service: [P, N] mean rounds of an attempt, or [] of all.
        learning: policies by label, which are left out if there is one LLM.
        seeds: S.
        horizon: T.
    """
    policies = make_candidates(arrays, list(about["models"]))
    policies |= learning if len(about["models"]) > 1 else {}
    data = sweep(
        policies, source, arrival_rate=[arrival_rate], horizon=horizon, num_seeds=seeds,
        record=[AnswersByPrompt(), "time_in_system", "away", "in_service"],
    ).isel(arrival_rate=0).sel(policy=list(policies))  # fmt: skip
    tried, left = np.moveaxis(data.by_prompt.to_numpy().astype(float), 2, 0)
    rates = 1 - left[0].sum(axis=1) / np.maximum(tried[0].sum(axis=1), 1)
    log_odds = np.einsum("pe,dne->dpn", arrays.contexts, arrays.draws)
    corrected = correct_log_odds(log_odds, about["precision"], about["retry_rate"])
    departs = np.asarray(jax.nn.sigmoid(corrected))
    shares = tried.sum(axis=1) / tried.sum(axis=(1, 2, 3))[:, None, None]
    paid = np.einsum("asij,ij->aj", tried, arrays.dollars) / left.sum(axis=(1, 2, 3))[:, None]
    paid *= np.asarray(about["price_errors"])
    keys = jax.vmap(rng.run_key)(jnp.arange(seeds))
    return Comparison(
        [*policies], _read_outcomes(data, arrays, about, service),
        np.einsum("apn,dpn->ad", shares, departs),
        np.asarray(jax.vmap(lambda key: draw_number(key, len(departs)))(keys)),
        rates, about, departs.mean(axis=1).std(axis=0), paid @ paid.T,
        0.75 * arrival_rate * horizon,
        float((shares[0] * service).sum()),
    )  # fmt: skip


def _read_outcomes(
    data: xr.Dataset, arrays: ScenarioArrays, about: Mapping[str, Any], service: Any
) -> dict[str, np.ndarray]:
    """Return what each policy gives in each seed: name -> [policies, S].

    `queue`: users in the system on average, in the second half of the rounds; `wait`: seconds from
    arrival to departure; `attempts` of a query; `departs`: share of attempts; `usd` of a query;
    `low` and `high`: bounds on the share of satisfied users among those who depart; `unsupported`:
    share of attempts with an LLM that the log hardly ever shows to such prompts; `breaks`: queries
    a second above which the queue grows without end.
    """
    second = data.isel(round=slice(data.sizes["round"] // 2, None))
    system = (second.queue_length + second["away"] + second.in_service).mean("round").to_numpy()
    tried, left = np.moveaxis(data.by_prompt.to_numpy().astype(float), 2, 0)
    queries, attempts = left.sum(axis=(2, 3)), tried.sum(axis=(2, 3))

    def mean(counts: np.ndarray, table: np.ndarray, total: np.ndarray) -> np.ndarray:
        return np.einsum("asij,ij->as", counts, table) / np.maximum(total, 1)

    time = np.broadcast_to(service, arrays.dollars.shape) * about["round_seconds"]
    wait = data.time_mean.isel(round=-1, missing_dims="ignore").to_numpy()
    return {
        "queue": system, "wait": wait * about["round_seconds"],
        "attempts": attempts / np.maximum(queries, 1), "departs": queries / np.maximum(attempts, 1),
        "usd": mean(tried, arrays.dollars, queries), "low": mean(left, arrays.low, queries),
        "high": mean(left, arrays.high, queries),
        "unsupported": mean(tried, 1.0 - arrays.supported, attempts),
        "breaks": about["channels"] / mean(tried, time, queries),
    }  # fmt: skip


def estimate_draws(values: np.ndarray, comparison: Comparison) -> tuple[np.ndarray, np.ndarray]:
    """Return each policy's mean in each draw, and the covariance that seeds leave: [p, D], [p, p].

    Args:
        values: [p, S] measured, not negative.
        comparison: with the shares that depart by each draw.
    """
    mean = np.maximum(values.mean(axis=1, keepdims=True), 1e-12)
    about, departs = comparison.about, comparison.expected
    relative = departs / departs.mean(axis=1, keepdims=True)
    rate = about["arrival_rate"] / about["round_seconds"]
    load = (rate / comparison.outcomes["breaks"].mean(axis=1))[:, None] / relative
    left, number = 1 - load, comparison.arrivals
    queue = (np.sqrt(left**2 + 4 * load / number) - left) * number / 2
    terms = np.log(np.stack([1 / relative, queue]))
    at, logs = terms[:, :, comparison.numbers], np.log(np.maximum(values, 0.01 * mean))
    at, logs = (part - part.mean(axis=-1, keepdims=True) for part in (at, logs))
    weighted = at / np.maximum(logs.var(axis=1, keepdims=True), 1e-12)
    square = np.einsum("aps,bps->ab", weighted, at) + np.eye(2) / STEEPEST**2
    slopes = np.linalg.solve(square, np.einsum("aps,ps->a", weighted, logs))
    draws = np.exp(np.einsum("a,apd->pd", slopes, terms))
    draws *= mean / draws.mean(axis=1, keepdims=True)
    noise = np.atleast_2d(np.cov(values - draws[:, comparison.numbers]))
    return draws, noise / values.shape[1]


def _draw_both(draws: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return draws with the noise of simulation: [p, `DRAWS`]."""
    key, size = np.random.default_rng(0), (DRAWS, len(noise))
    root = np.linalg.cholesky(noise + 1e-12 * np.eye(len(noise)) * max(np.trace(noise), 1e-12))
    return np.resize(draws.T, size).T + root @ key.standard_normal(size).T


def tabulate(comparison: Comparison) -> pl.DataFrame:
    """Return a row for each policy: means, 95% intervals, differences to today, P(best).

    `queue_data` and `queue_simulation` are the half widths of the queue's interval that more data,
    and more seeds, would shrink. `NAME_more` is the difference to today's policy.
    """
    columns: dict[str, Any] = {"policy": comparison.labels}
    for name, values in comparison.outcomes.items():
        draws, noise = estimate_draws(values, comparison)
        mean = values.mean(axis=1)
        both = _draw_both(draws, noise + (comparison.price_covariance if name == "usd" else 0.0))
        for what, of in ((name, lambda some: some), (f"{name}_more", lambda some: some - some[0])):
            low, high = np.quantile(of(both), INNER, axis=1)
            columns |= {what: of(mean), f"{what}_low": low, f"{what}_high": high}
        if name == "queue":
            best = np.bincount(both.argmin(axis=0), minlength=len(mean)) / DRAWS
            by_data = np.ptp(np.quantile(draws, INNER, axis=1), axis=0) / 2
            columns |= {"best": best, "queue_data": by_data,
                        "queue_simulation": 1.96 * np.sqrt(np.diag(noise))}  # fmt: skip
    return pl.DataFrame(columns)


def check_parity(comparison: Comparison) -> list[tuple[str, float, float, float]]:
    """Compare the log with its own policy in the scenario.

    Returns:
        What is compared, in the log, in the scenario, and the two-sided posterior predictive p.
    """
    about = comparison.about
    pairs = [("attempts a query", about["attempts_a_query"], comparison.outcomes["attempts"][0])]
    if len(about["models"]) > 1:
        retried = zip(about["retried"].items(), comparison.rates.T, strict=True)
        pairs += [(f"retry rate of {name}", rate, some) for (name, rate), some in retried]
    if "stay" in about:
        # An answer that is shorter than a round takes one in the scenario.
        before_last = comparison.outcomes["wait"][0] - about["round_seconds"] * comparison.service
        pairs.append(("time in the system (s)", about["stay"], before_last + about["latency"]))
        if about["pause"] is not None:
            again = np.maximum(comparison.outcomes["attempts"][0] - 1, 1e-9)
            cycle = about["pause"] + about["latency"]
            pairs.append(("time from a request to its retry (s)", cycle, before_last / again))
    rows = []
    for what, value, some in pairs:
        tail = min((some <= value).sum(), (some >= value).sum())
        chance = min(1.0, 2 * (1 + tail) / (1 + len(some)))
        rows.append((what, value, float(some.mean()), float(chance)))
    if "hour" in about:
        hour, *checked = about["hour"]
        rows.append((f"retry rate from {hour} to {hour + 1} o'clock", *checked))
    return rows


def recommend(table: pl.DataFrame, comparison: Comparison) -> str:
    """Return the policy with the shortest queue, or that the log cannot tell, and what log would.

    Policies that are within `CLOSE` of the range of all are as good as the best.
    """
    order = table.sort("queue")
    first, best = order["policy"][0], order["queue"][0]
    spread = CLOSE * (order["queue"][-1] - best)
    # What another policy may be shorter by, at most.
    number, values = comparison.labels.index(first), comparison.outcomes["queue"]
    draws, noise = estimate_draws(values, comparison)
    both = _draw_both(draws, noise)
    ahead = np.quantile(both[number] - both, INNER[1], axis=1)
    rivals = np.flatnonzero(ahead > spread).tolist()
    unsupported = order["unsupported"][0]
    if unsupported > UNSUPPORTED:
        return (
            f"This log cannot tell: {first} has the shortest queue, but {unsupported:.0%} "
            "of its attempts are with LLMs that the log hardly ever shows to such prompts; a log "
            "that shows them would tell."
        )
    if not rivals or order["best"][0] >= BEST:
        return f"Recommended: {first}, best with probability {order['best'][0]:.2f}."
    j = max(rivals, key=lambda rival: ahead[rival])
    by_data = float((draws[number] - draws[j]).var())
    by_seeds = float(noise[j, j] + noise[number, number] - 2 * noise[number, j])
    named = f"{first} or {', '.join(comparison.labels[rival] for rival in rivals)}"
    if by_seeds > by_data:
        return f"Not distinguished with seeds={values.shape[1]}: {named}; more seeds would tell."
    gap = max(table["queue"][j] - best, spread, 1e-9)
    rows = int(comparison.about["rows"] * max(1.96**2 * by_data / gap**2, 2.0))
    llm = list(comparison.about["models"])[int(comparison.errors.argmax())]
    return (
        f"This log cannot tell: {named}; about {rows:,} requests would tell, most of all "
        f"of {llm}, whose departures are the least known."
    )


def describe_comparison(comparison: Comparison, table: pl.DataFrame) -> Iterator[str]:
    """Yield the lines of the page; what fails is first."""
    parity = check_parity(comparison)
    for what, logged, simulated, chance in parity:
        if chance < UNLIKELY:
            yield (
                f"PARITY FAILS: {what} is {logged:.3f} in the log and {simulated:.3f} in the "
                f"scenario (p = {chance:.3f})"
            )
    if len(comparison.about["models"]) == 1:
        yield "The log has one LLM: routing cannot be compared, schedules are."
    yield recommend(table, comparison)
    least = min(chance for *_, chance in parity)
    yield f"Parity: {len(parity)} comparisons of the log with its own policy, least p {least:.3f}"
    for row in table.filter(pl.col("unsupported") > UNSUPPORTED).iter_rows(named=True):
        yield (
            f"NOT COMPARED: {row['policy']}, {row['unsupported']:.0%} of whose attempts are with "
            "LLMs that the log hardly ever shows to such prompts; its row is by the model alone"
        )


def select_columns(comparison: Comparison, table: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of `tabulate` that are printed, with their headers (`compare.yaml`)."""
    columns = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    headers = dict(columns["with_interval"])
    if comparison.about["priced"]:
        headers |= columns["priced"]
    ends = {f"{k}{end}": f"{v}{end}" for k, v in headers.items() for end in ("_low", "_high")}
    headers = {"policy": "policy", **headers, **columns["without"]} | ends
    rows = table.with_columns(pl.col("breaks") * 3600)
    return rows.select(pl.col(name).alias(header) for name, header in headers.items())


def draw_comparison(table: pl.DataFrame, about: Mapping[str, Any], names: list[str]) -> Figure:
    """Draw the queue, the cost and the load at which each policy breaks, with 95% intervals."""
    figure = Figure(figsize=(10, 1.5 + 0.3 * len(names)), layout="constrained")
    rows = table.with_columns(name=pl.Series(names)).sort("queue", descending=True)
    now = 3600 * about["arrival_rate"] / about["round_seconds"]
    headers = ("users in the system", "USD a query", "breaks at, queries an hour")
    panels = figure.subplots(1, 3, sharey=True)
    for name, header, panel in zip(("queue", "usd", "breaks"), headers, panels, strict=True):
        scale = 3600 if name == "breaks" else 1
        mean, low, high = (scale * rows[f"{name}{end}"].to_numpy() for end in ("", "_low", "_high"))
        panel.errorbar(mean, rows["name"], xerr=np.maximum([mean - low, high - mean], 0), fmt="o")
        panel.set_xlabel(header)
        panel.grid(axis="x", alpha=0.3)
    panel.axvline(now, color="black", linestyle="--")
    panel.set_title(f"dashed: {now:,.3g} in the log", fontsize="medium")
    figure.suptitle("Shortest queue: " + rows["name"][-1], x=0.01, ha="left", weight="bold")
    return figure
