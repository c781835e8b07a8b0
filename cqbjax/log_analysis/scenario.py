"""A log's fit as a scenario: an ordinary source, arrivals, return delays and service times.

Each run draws its own coefficients from the posterior of the departures, so that runs differ as
much as what the log leaves open.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jax import Array

from cqbjax.core import rng
from cqbjax.core.inputs import TableNames
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Outcome, Problem, Workload
from cqbjax.log_analysis.requests import RequestLog
from cqbjax.log_analysis.retries import Retries
from cqbjax.logs.shards import LogError
from cqbjax.sources import PromptPool
from cqbjax.sources.preference_drift import SourceWrapper

MAX_PROMPTS, MAX_POOL, DRAWS = 2000, 1000, 400
# Queries a round at most, if the log is so light that a round could be longer than an answer; and
# if it is so busy that a part of the service is simulated.
LIGHT, BUSY, MAX_CHANNELS = 0.5, 0.8, 4
MAX_TRACE, MAX_GAPS = 20_000, 2000
MAX_ROUNDS = 2000
JUMP = 500  # a pause in the arrivals is cut to this many mean intervals
FIXED_MARGIN = 1e-6


@pytree
class PosteriorPool(SourceWrapper):
    """Prompts of a log, whose departure probabilities each run draws from their posterior.

    Attributes:
        source: the prompts, with the departures of the posterior's mean.
        draws: [D, N, d] coefficients of the contexts; a run draws one of the D.
        precision: probability that a request that counts as a retry follows a failure; the others
            are new queries.
        retry_rate: share of all requests that are retried.
    """

    source: Any
    draws: Array
    precision: Array | float = 1.0
    retry_rate: Array | float = 0.0

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Validate the precision and the source within.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        if not 0 < float(self.precision) <= 1:
            raise ValueError(f"precision={float(self.precision):g} must be a share in (0, 1]")
        self.source.check(seeds, arrival_rate, K)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the pool and the coefficients of the run."""
        workload: Workload = self.source.draw_workload(key, arrival_rate, problem)
        drawn = self.draws[draw_number(key, len(self.draws))]
        log_odds = workload.contexts @ drawn.T
        utilities = correct_log_odds(log_odds, self.precision, self.retry_rate)
        return workload._replace(utilities=utilities)


def draw_number(key: Array, draws: int) -> Array:
    """Return the number of the posterior's draw that a run takes: [] int32."""
    own = jax.random.fold_in(rng.stream_key(rng.round_key(key, 0), rng.Stream.POOL), 1)
    return jax.random.randint(own, (), 0, draws)


def correct_log_odds(log_odds: Any, precision: Any, retry_rate: Any) -> Any:
    """Return the log-odds of departure if only a share of the retries follow a failure.

    Misclassification is the same for all LLMs and prompts: a request after which the query departs
    is followed by one that looks like a retry with probability m, and so

        P(retry) = P(fails) + m (1 - P(fails)),    m = (1 - precision) r / (1 - precision r).
    """
    wrong = (1 - precision) * retry_rate / (1 - precision * retry_rate)
    failure = (jax.nn.sigmoid(-log_odds) - wrong) / (1 - wrong)
    failure = jnp.clip(failure, FIXED_MARGIN, 1 - FIXED_MARGIN)
    return jnp.log1p(-failure) - jnp.log(failure)


class ScenarioArrays(NamedTuple):
    """Arrays of a fitted scenario, by prompt of the pool.

    Attributes:
        contexts: [P, d] no longer than 1, a constant first.
        draws: [D, N, d].
        mean: [N, d].
        dollars: [P, N] USD of an answer.
        seconds: [P, N] mean latency of an answer; 0 in a log without latencies.
        low: [P, N] least probability that a departed query was satisfied.
        high: [P, N] largest one.
        supported: [P, N] whether the log compares the LLM on such prompts.
        routing: [P, N] probability with which the log's policy chooses each LLM.
    """

    contexts: np.ndarray
    draws: np.ndarray
    mean: np.ndarray
    dollars: np.ndarray
    seconds: np.ndarray
    low: np.ndarray
    high: np.ndarray
    supported: np.ndarray
    routing: np.ndarray


class Timing(NamedTuple):
    """Arrivals and service of a log in rounds.

    Attributes:
        round_seconds: length of a round.
        arrival_rate: queries a round.
        channels: requests in service at a time.
        arrivals: [m] seconds of the queries' arrivals.
        gaps: [g] seconds from an answer to its retry, censored ones accounted for, and corrected
            for whole rounds.
    """

    round_seconds: float
    arrival_rate: float
    channels: int
    arrivals: np.ndarray
    gaps: np.ndarray


def load_arrays(file: str | Path) -> tuple[ScenarioArrays, dict[str, Any]]:
    """Return the arrays of a fitted scenario, and its description.

    Raises:
        LogError: the file does not exist or is not one of `cqbjax log fit`.
    """
    try:
        with np.load(file) as stored:
            about = json.loads(str(stored["about"]))
            return ScenarioArrays(*(stored[name] for name in ScenarioArrays._fields)), about
    except (OSError, KeyError, ValueError) as error:
        raise LogError(f"{file}: is no scenario of cqbjax log fit: {error}.") from error


def make_posterior_pool(
    file: str, uncertain: bool = True, precision: float | None = None,
    pool_size: int | None = None, outcome: Outcome | None = None,
) -> PosteriorPool:  # fmt: skip
    """Return the source of a fitted scenario.

    Args:
        file: the arrays that `cqbjax log fit` wrote.
        uncertain: whether each run draws from the posterior; False: its mean in all runs.
        precision: as in `PosteriorPool`; None: that of the fit.
        pool_size: prompts of a run; None: half of them, at most `MAX_POOL`.
        outcome: as in `sources.PromptPool`; None: that of the fit.

    Raises:
        LogError: the file cannot be read.
    """
    arrays, about = load_arrays(file)
    precision = about["precision"] if precision is None else precision
    contexts, prompts = jnp.asarray(arrays.contexts, float), len(arrays.contexts)
    mean = jnp.asarray(arrays.mean, float)
    rate = about["retry_rate"]
    pool = PromptPool(
        contexts=contexts, utilities=correct_log_odds(contexts @ mean.T, precision, rate),
        pool_size=pool_size or min(MAX_POOL, max(1, prompts // 2)),
        dollars=jnp.asarray(arrays.dollars, float), scores=jnp.asarray(arrays.low, float),
        outcome=outcome or about["outcome"],
        names=TableNames([str(i) for i in range(prompts)], about["models"], str(file)),
    )  # fmt: skip
    draws = jnp.asarray(arrays.draws, float) if uncertain else mean[None]
    return PosteriorPool(source=pool, draws=draws, precision=precision, retry_rate=rate)


def measure_timing(
    log: RequestLog, retries: Retries, round_seconds: float | None, channels: int | None,
    profile: bool,
) -> tuple[Timing, list[str]]:  # fmt: skip
    """Return arrivals and service in rounds, and what was assumed.

    Args:
        log: from `read_log`.
        retries: from `find_retries`.
        round_seconds: length of a round; None: the fastest LLM's answer, or longer in a light log.
        channels: requests in service at a time; None: the most in the log.
        profile: whether arrivals are drawn from the log's rate at each hour of the day, in place
            of the log's own times.

    Raises:
        LogError: the log is too short to tell arrivals or gaps.
    """
    frame, gaps, notes = log.frame, retries.gaps, list[str]()
    times = frame["time"].to_numpy()[retries.before < 0]
    if not log.timed:
        notes.append("No times: queries arrive at random, half a query a round; retries at once.")
        return Timing(1.0, LIGHT, 1, np.arange(len(times), dtype=float), np.ones(1)), notes
    span = float(frame["time"][-1] - frame["time"][0])
    if len(times) < 50 or (len(gaps) and span < 5 * np.quantile(gaps, 0.95)):
        raise LogError(
            f"the log is too short: {len(times):,} queries in {span:,.3g} s, and it must be five "
            "times as long as the gaps before retries, with 50 queries or more."
        )
    rate = len(times) / span
    by_model = frame.group_by("model").agg(pl.col("latency").mean()).sort("model")["latency"]
    seconds = by_model.fill_null(by_model.mean() or 0.0).to_numpy()
    if by_model.null_count() == len(by_model):
        notes.append("No latencies: each attempt takes one round.")
    usual = float(np.average(seconds, weights=np.bincount(frame["model"].to_numpy())))
    # A round no longer than the gaps before retries.
    slow = min(LIGHT / rate, float(np.median(gaps)) if len(gaps) else np.inf)
    length = round_seconds or max(float(seconds.min()), slow)
    part = min(1.0, BUSY / (rate * length))
    if channels is None:
        starts, ends = np.sort(frame["time"].to_numpy()), np.sort(frame["ended"].to_numpy())
        busy = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts)
        # Several answers fit into a round that is longer than they are.
        fit = max(1.0, length / max(usual, 1e-9))
        channels = int(np.clip(np.quantile(busy, 0.999) * fit * part, 1, MAX_CHANNELS))
        notes.append(f"Capacity is not in a log: channels={channels} is assumed, from its peak.")
    if part < 1:
        notes.append(f"A share of {part:.2g} of the service is simulated.")
    times = _draw_profile(times, span) if profile else times
    steps = np.diff(times, prepend=times[0])
    longest = JUMP * steps.mean()
    if pauses := int((steps > longest).sum()):
        notes.append(f"{pauses} pauses in the arrivals are shortened.")
    arrivals = np.cumsum(np.minimum(steps, longest))[:MAX_TRACE]
    table = np.ones(1)
    if len(gaps):
        # Whole rounds are rounded up, and an attempt takes one at least: on average neither counts.
        table = _weigh_gaps(frame, gaps) + 0.5 * length - max(length - usual, 0.0)
        table = np.maximum(table, 1e-3)
    return Timing(length, rate * length * part, channels, arrivals, table), notes


def _draw_profile(times: np.ndarray, span: float) -> np.ndarray:
    """Draw arrivals at the rate of each hour of the day, within `span` seconds."""
    hours = np.bincount((times // 3600 % 24).astype(int), minlength=24).astype(float)
    draw, hour = np.random.default_rng(0), np.arange(int(np.ceil(span / 3600)))
    chance = hours[(hour + int(times[0] // 3600)) % 24]
    counts = draw.poisson(len(times) * chance / chance.sum())
    return np.sort((np.repeat(hour, counts) + draw.uniform(size=counts.sum())) * 3600)


def _weigh_gaps(frame: pl.DataFrame, gaps: np.ndarray) -> np.ndarray:
    """Return quantiles of the gaps before retries, as if the log did not end: [`MAX_GAPS`].

    A gap g is seen only after answers that came at least g before the end of the log.
    """
    left = np.sort(frame["time"][-1] - frame["ended"].to_numpy())
    weights = 1 / np.maximum(len(left) - np.searchsorted(left, gaps), 1)
    levels = (np.arange(MAX_GAPS) + 0.5) / MAX_GAPS
    return np.quantile(gaps, levels, weights=weights, method="inverted_cdf")


def choose_horizon(about: Mapping[str, Any], arrival_rate: float) -> int:
    """Return the rounds in which as many queries come as in the log, within `MAX_ROUNDS`."""
    return int(np.clip(about["queries"] / arrival_rate, 200, MAX_ROUNDS))


def write_scenario(
    name: str, arrays: ScenarioArrays, timing: Timing, about: dict[str, Any], folder: Path
) -> list[Path]:
    """Write a scenario, a task of the arena and a source below a folder, and their arrays.

    They are `conf/scenario/NAME.yaml`, `conf/arena/NAME.yaml` and `conf/source/NAME.yaml`.

    Returns:
        The files.
    """
    below = folder / "conf" / "scenario" / name
    below.mkdir(parents=True, exist_ok=True)
    names = ("arrays.npz", "arrivals.parquet", "gaps.parquet", "latencies.parquet")
    files = [below / one for one in names]
    np.savez_compressed(files[0], about=json.dumps(about), **arrays._asdict())
    pl.DataFrame({"timestamp": timing.arrivals}).write_parquet(files[1])
    pl.DataFrame({"seconds": timing.gaps}).write_parquet(files[2])
    prompts = pl.DataFrame({"prompt_id": [str(i) for i in range(len(arrays.seconds))]})
    prompts.hstack(pl.DataFrame(arrays.seconds, about["models"])).write_parquet(files[3])
    length, service = timing.round_seconds, ["count"]
    words = about | {
        "name": name, "below": below.relative_to(folder), "round_seconds": length,
        "arrival_rate": float(f"{timing.arrival_rate:.4g}"), "channels": timing.channels,
        "horizon": choose_horizon(about, timing.arrival_rate),
    }  # fmt: skip
    template = Path(__file__).with_name("scenario_template.yaml").read_text()
    *texts, common, rounds = template.split("---\n")
    if (arrays.seconds > length).any():
        service, common = [*service, "rounds"], common + rounds
    words |= {"service": f"[{', '.join(service)}]", "timing": Template(common).substitute(words)}
    for group, text in zip(("arena", "source", "scenario"), texts, strict=True):
        files.insert(0, folder / "conf" / group / f"{name}.yaml")
        files[0].parent.mkdir(exist_ok=True)
        files[0].write_text(Template(text).substitute(words))
    return files
