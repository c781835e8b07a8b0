"""Logs in WildChat's schema with planted chains: every retrial and its chance is known.

The times are real ones where they can be: conversations arrive as in a trace of an LLM service
(stretched, and repeated from its beginning when it ends), answers have its token counts, and
retrials come after the gaps between real repeats in WildChat. The prompts are made up. What decides
whether a user comes back is the topic, which the first prompt tells.
"""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cqbjax.datasets.readers.parquet_csv import check_columns, read_frame
from cqbjax.logs import schema
from cqbjax.logs.prepare import MODEL, TRUTH
from cqbjax.logs.reading import FIRST_TOKEN, SECOND, TOKENS_A_SECOND
from cqbjax.logs.shards import LogError

TRACE = Path("traces") / "azure_llm_2023_conv.parquet"
GAPS = Path("wildchat_chains") / "retrial_chains.csv"
VERBS = ("Write", "Draft", "Prepare", "Give me", "Help me with", "I need")
KINDS = (
    "an essay", "a poem", "a business plan", "a python script", "a lesson", "a legal letter",
    "a song", "a quiz", "a travel guide", "an interview",
)  # fmt: skip
TOPICS = (
    "volcanoes", "chess openings", "electric cars", "medieval castles", "honey bees", "tax law",
    "jazz piano", "wind turbines", "ancient Rome", "coral reefs", "football tactics", "opera",
    "solar panels", "baking bread", "black holes", "railway signals", "knitting", "earthquakes",
    "vaccines", "glaciers", "coffee roasting", "dinosaurs", "cheese making", "robot arms",
    "sailing knots", "gothic novels", "the stock market", "bird migration", "marathon training",
    "quantum computing", "woodworking", "the silk road", "rice farming", "sign language",
    "nuclear fusion", "desert plants", "film music", "mountain rescue", "perfume", "typography",
)  # fmt: skip
PEOPLE = ("my sister", "the town council", "a class of ten-year-olds", "our new customers")
PLACES = (
    "Lisbon", "Nairobi", "Osaka", "Toronto", "Warsaw", "Lima", "Mumbai", "Oslo", "Cairo", "Texas",
    "Vienna", "Jakarta", "Dublin", "Seoul", "Havana", "Athens", "Alaska", "Ghana", "Prague",
    "Perth",
)  # fmt: skip
# Every eighth topic is hard; its users come back more often than not.
HARD, EASY = 8, (0.97, 1.0)
BEGIN = 1_699_300_000 * SECOND  # 2023-11-06, when the paper's model came out


class Settings(NamedTuple):
    """What a generated log is like.

    Attributes:
        conversations: of the model, about; every tenth row more is another model's.
        longer: mean length of the chains on hard topics that have two or more: a user of one is
            satisfied with probability about 1 / (longer - 1) each time.
        days: from the first arrival to the last root.
        users: chains a hashed IP, on average.
        retyped: share of retrials whose prompt differs in blanks alone.
        early: share of single conversations that are sent again before they were answered.
        follow_ups: share of single conversations after which a similar thing is asked.
        close: whether follow-ups differ from what they follow in a word or a sign at times, so
            that how close prompts have to be decides which are taken for retrials; else they are
            always for somebody else.
        seed: of all draws.
    """

    conversations: int
    longer: float = 2.5
    days: float = 120.0
    users: float = 6.0
    retyped: float = 0.3
    early: float = 0.01
    follow_ups: float = 0.04
    close: bool = False
    seed: int = 0


def generate(folder: Path, data_dir: Path, settings: Settings, shard_rows: int = 20_000) -> str:
    """Write a log as shards, each of which says what it is, and `truth.parquet` beside them.

    Args:
        folder: where `train-*.parquet` go; what is there of an earlier one is replaced.
        data_dir: holds the trace (`TRACE`) and the real gaps (`GAPS`).
        settings: what the log is like.
        shard_rows: rows a shard.

    Returns:
        What the log stands in for.

    Raises:
        ValueError: a setting is out of range, or the trace or the gaps are not there.
    """
    _check(settings)
    arrivals, tokens = read_trace(data_dir / TRACE)
    gaps = read_gaps(data_dir / GAPS)
    rows = _Rows(settings, arrivals, tokens, gaps).all()
    stand_in = (
        f"a generated log with planted chains ({settings.conversations:,} conversations, arrivals "
        "and token counts of the Azure 2023 conversation trace, retrial gaps of 32 real chains), "
        "standing in for WildChat-1M"
    )
    for old in folder.glob("train-*.parquet"):
        old.unlink(missing_ok=True)
    count = -(-len(rows) // shard_rows)
    # Not in the order of time: a reader has to sort.
    order = np.random.default_rng(settings.seed).permutation(len(rows))
    truth = []
    for number in range(count):
        some = [rows[i] for i in order[number * shard_rows : (number + 1) * shard_rows]]
        shard = folder / f"train-{number:05d}-of-{count:05d}.parquet"
        schema.write(shard, [_row(one) for one in some], stand_in)
        truth += [(one.chain, one.position, one.planted, one.kind) for one in some]
    columns = ["chain", "position", "planted", "kind"]
    pl.DataFrame(truth, columns, orient="row").with_row_index("row").with_columns(
        pl.col("row").cast(pl.Int64)
    ).write_parquet(folder / TRUTH)
    return stand_in


def read_trace(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return a trace's arrivals [n] in [0, 1) of its length, and its response tokens [n].

    Raises:
        ValueError: there is no such file, or it lacks a column.
    """
    frame = _table(path, "arrivals", "TIMESTAMP", "GeneratedTokens")
    frame = frame.sort("TIMESTAMP", maintain_order=True)
    times = frame["TIMESTAMP"].cast(pl.Datetime("us")).to_physical().to_numpy().astype(float)
    # One mean interval from the last arrival to the trace's repetition.
    length = (times[-1] - times[0]) * len(times) / (len(times) - 1)
    return (times - times[0]) / length, frame["GeneratedTokens"].to_numpy()


def read_gaps(path: Path) -> np.ndarray:
    """Return the real gaps between repeats, seconds, in increasing order.

    Raises:
        ValueError: there is no such file, or it lacks the column.
    """
    gaps = _table(path, "retrial gaps", "seconds_since_previous")
    return np.sort(gaps["seconds_since_previous"].drop_nulls().to_numpy().astype(float))


def _table(path: Path, what: str, *columns: str) -> pl.DataFrame:
    """Read a table that must have some columns."""
    if not path.is_file():
        raise LogError(f"{path}: no such file, a generated log takes its {what} from it.")
    frame = read_frame(path)
    check_columns(frame.columns, columns, path)
    return frame


def draw_gap(gaps: np.ndarray, uniform: float) -> float:
    """Return a gap in seconds: the empirical quantile, interpolated between logarithms."""
    places = (np.arange(len(gaps)) + 0.5) / len(gaps)
    return float(np.exp(np.interp(uniform, places, np.log(gaps))))


def chances(longer: float) -> np.ndarray:
    """Return the chance of each topic's users to be satisfied by an answer: [topics]."""
    topics = np.arange(len(TOPICS))
    easy = np.linspace(*EASY, len(TOPICS))
    spread = np.linspace(0.8, 1.2, len(TOPICS) // HARD)
    hard = np.minimum(0.95, spread[topics // HARD] / (longer - 1))
    return np.where(topics % HARD == 0, hard, easy)


class _Row(NamedTuple):
    """One conversation to be written; `kind` is chain, early, follow_up or other."""

    ip: str
    prompt: str
    arrival: int
    tokens: int
    turns: int
    chain: int
    position: int
    planted: float
    kind: str
    model: str = MODEL

    @property
    def answered(self) -> int:
        return self.arrival + round(SECOND * (FIRST_TOKEN + self.tokens / TOKENS_A_SECOND))

    @property
    def ended(self) -> int:
        return self.answered + (self.turns - 1) * 40 * SECOND


class _Rows:
    """Draws the conversations of a log."""

    def __init__(
        self, settings: Settings, arrivals: np.ndarray, tokens: np.ndarray, gaps: np.ndarray
    ) -> None:
        self.settings, self.arrivals, self.tokens, self.gaps = settings, arrivals, tokens, gaps
        self.draw = np.random.default_rng(settings.seed)
        combined = list(itertools.product(range(len(TOPICS)), KINDS, PLACES))
        # Any two differ in topic, kind or place: no encoder takes them for the same.
        order = self.draw.permutation(len(combined))
        self.pool = [combined[i] for i in order]
        self.chances = chances(settings.longer)
        self.chain = 0

    def all(self) -> list[_Row]:
        """Return all rows, chain by chain."""
        rows: list[_Row] = []
        extra = 1 + self.settings.early + self.settings.follow_ups
        mean_length = float(np.mean(1 / self.chances))
        roots = max(2, round(self.settings.conversations / mean_length / extra))
        starts = self._roots(roots)
        ips = self._ips(roots)
        used: dict[int, int] = {}
        for start, ip in zip(starts, ips, strict=True):
            place = used[ip] = used.get(ip, -1) + 1
            rows += self._chain(start, ip, (7 * ip + place) % len(self.pool))
        return rows

    def _roots(self, count: int) -> np.ndarray:
        """Return arrival times: the trace, repeated and stretched to the log's days."""
        number = np.arange(count)
        passed = number // len(self.arrivals) + self.arrivals[number % len(self.arrivals)]
        since = np.rint(passed / passed[-1] * self.settings.days * 86400 * SECOND)
        return BEGIN + since.astype(int)

    def _ips(self, count: int) -> np.ndarray:
        """Draw each chain's IP: some have many users, most a few."""
        size = max(1, round(count / self.settings.users))
        weight = np.minimum(self.draw.pareto(1.2, size) + 0.2, 60)
        return self.draw.choice(size, count, p=weight / weight.sum())

    def _chain(self, start: int, ip: int, place: int) -> list[_Row]:
        topic, kind, where = self.pool[place]
        chance = float(self.chances[topic])
        verb, person = VERBS[place % len(VERBS)], place % len(PEOPLE)
        prompt = _prompt(verb, kind, topic, PEOPLE[person], where)
        length = int(self.draw.geometric(chance))
        rows = [self._row(ip, prompt, start, 0, chance, "chain")]
        while len(rows) < length:
            later = rows[-1].ended + 1 + round(SECOND * draw_gap(self.gaps, self.draw.uniform()))
            text = self._retyped(prompt) if self.draw.uniform() < self.settings.retyped else prompt
            rows.append(self._row(ip, text, later, len(rows), chance, "chain"))
        self.chain += 1
        if length == 1:
            other = _prompt(verb, kind, topic, PEOPLE[person - 1], where)
            if self.settings.close:
                edited = _prompt(VERBS[place % len(VERBS) - 1], kind, topic, PEOPLE[person], where)
                other = (other, prompt + "?", prompt + " please", edited)[self.draw.integers(4)]
            rows += self._decoys(rows[0], ip, other, chance)
        if self.draw.uniform() < 0.1:
            rows.append(rows[0]._replace(model="gpt-3.5-turbo-0613", kind="other", chain=-1))
        return rows

    def _decoys(self, root: _Row, ip: int, other: str, chance: float) -> list[_Row]:
        """Return what looks like a retrial of a single conversation and is none."""
        decoys, uniform = [], self.draw.uniform()
        if uniform < self.settings.early:
            soon = root.arrival + int((root.ended - root.arrival) * self.draw.uniform(0.1, 0.9))
            decoys = [self._row(ip, root.prompt, soon, 0, chance, "early")]
        elif uniform < self.settings.early + self.settings.follow_ups:
            later = root.ended + round(SECOND * self.draw.uniform(5, 120))
            decoys = [self._row(ip, other, later, 0, chance, "follow_up")]
        self.chain += len(decoys)
        return decoys

    def _row(
        self, ip: int, prompt: str, arrival: int, position: int, chance: float, kind: str
    ) -> _Row:
        tokens = int(self.tokens[self.draw.integers(len(self.tokens))])
        turns = 1 + int(self.draw.uniform() < 0.3)
        return _Row(
            f"{ip:064x}", prompt, int(arrival), tokens, turns, self.chain, position, chance, kind
        )

    def _retyped(self, prompt: str) -> str:
        return (prompt + " ", prompt.replace(" ", "  ", 1), prompt + "\n")[self.draw.integers(3)]


def _prompt(verb: str, kind: str, topic: int, person: str, where: str) -> str:
    return f"{verb} {kind} about {TOPICS[topic]} for {person} in {where}"


def _row(one: _Row) -> dict[str, Any]:
    """Return a row of the official schema; a response is four letters a token."""
    step = 40 * SECOND
    answers = [(one.answered + i * step, "word" * one.tokens) for i in range(one.turns)]
    return schema.row(one.model, one.ip, one.prompt, answers)


def _check(settings: Settings) -> None:
    if settings.conversations < 10:
        raise LogError(f"made_up={settings.conversations} must be at least 10 conversations.")
    if not settings.longer > 1.5:
        raise LogError(f"longer={settings.longer} must be above 1.5 conversations.")
