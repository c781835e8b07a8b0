"""Generate a log in WildChat-1M's schema, whose retry chains and satisfaction are known.

    python -m reproduction.generated_log DATA 60000

writes `DATA/made_up/wildchat-60000`, which `prepare_data dataset=wildchat source=` reads. DATA must
hold the trace and the real gaps (`TRACE`, `GAPS`).

Conversations arrive as in a trace of an LLM service (stretched, and repeated from its beginning
when it ends), answers have its token counts, and retrials come after the gaps between real repeats
in WildChat. The prompts are made up. The topic, which the first prompt names, determines the
probability that an answer satisfies the user.
"""

import argparse
import datetime
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from cqbjax.core.files import remove_on_error
from cqbjax.datasets.readers.parquet_csv import check_columns, read_frame
from cqbjax.logs.conversations import EPOCH, FIRST_TOKEN, SECOND, TOKENS_PER_SECOND
from cqbjax.logs.prepare import MODEL, TRUTH
from cqbjax.logs.shards import PROXY_NOTE, LogError

TRACE = Path("traces") / "azure_llm_2023_conv.parquet"
GAPS = Path("wildchat_chains") / "retrial_chains.csv"
_WORDS = yaml.safe_load(Path(__file__).with_name("made_up_words.yaml").read_text())["generated"]
VERBS, KINDS, TOPICS, PEOPLE, PLACES = _WORDS.values()
# Users of every eighth topic, the hard ones, mostly come back.
HARD, EASY = 8, (0.97, 1.0)
BEGIN = 1_699_300_000 * SECOND  # 2023-11-06, when the paper's model came out


def _make_type(of: Any) -> pa.DataType:
    """Return the Arrow type of a column of `wildchat_schema.yaml`."""
    if isinstance(of, list):
        return pa.list_(_make_type(of[0]))
    if isinstance(of, dict):
        return pa.struct([(name, _make_type(one)) for name, one in of.items()])
    return pa.timestamp("us", "UTC") if of == "time" else pa.type_for_alias(of)


_COLUMNS = yaml.safe_load(Path(__file__).with_name("wildchat_schema.yaml").read_text())
SCHEMA = pa.schema([(name, _make_type(of)) for name, of in _COLUMNS.items()])
HEADER = {"accept-language": "en-US", "user-agent": "Mozilla/5.0"}


class GeneratorSettings(NamedTuple):
    """Settings of a generated log.

    Attributes:
        conversations: approximate number; every tenth row more is another model's.
        longer: mean length of the chains on hard topics that have two or more: an answer satisfies
            their users with probability about 1 / (longer - 1).
        days: from the first arrival to the last root.
        users: mean number of chains per hashed IP.
        retyped: share of retrials whose prompt differs in blanks alone.
        early: share of single conversations that are sent again before they were answered.
        follow_ups: share of single conversations that a similar prompt follows.
        close: whether some follow-ups differ in a word or a sign only, so that the threshold
            decides which count as retrials; else they ask for another person.
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


def generate(
    folder: Path, data_dir: Path, settings: GeneratorSettings, shard_rows: int = 20_000
) -> str:
    """Write a generated log as shards, each with a proxy note, and its ground truth.

    Args:
        folder: receives `train-*.parquet` and `truth.parquet`, in place of earlier ones.
        data_dir: holds the trace (`TRACE`) and the real gaps (`GAPS`).
        settings: of the log.
        shard_rows: rows per shard.

    Returns:
        The proxy note.

    Raises:
        ValueError: a setting is out of range, or the trace or the gaps are missing.
    """
    if settings.conversations < 10:
        raise LogError(f"conversations={settings.conversations} must be at least 10 conversations.")
    if not settings.longer > 1.5:
        raise LogError(f"longer={settings.longer} must be above 1.5 conversations.")
    rows = _Generator(settings, data_dir).draw_rows()
    note = (
        f"a generated log with planted chains ({settings.conversations:,} conversations, arrivals "
        "and token counts of the Azure 2023 conversation trace, retrial gaps of 32 real chains), "
        "standing in for WildChat-1M"
    )
    for old in folder.glob("train-*.parquet"):
        old.unlink(missing_ok=True)
    count = -(-len(rows) // shard_rows)
    # In another order than that of time, which a reader must restore.
    order = np.random.default_rng(settings.seed).permutation(len(rows))
    truth = []
    for number in range(count):
        part = [rows[i] for i in order[number * shard_rows : (number + 1) * shard_rows]]
        shard = folder / f"train-{number:05d}-of-{count:05d}.parquet"
        write_shard(shard, [row.to_conversation() for row in part], note)
        truth += [(row.chain, row.position, row.satisfaction, row.kind) for row in part]
    columns = ["chain", "position", "satisfaction", "kind"]
    frame = pl.DataFrame(truth, columns, orient="row").with_row_index("row")
    frame.cast({"row": pl.Int64}).write_parquet(folder / TRUTH)
    return note


def _read_source(path: Path, content: str, *columns: str) -> pl.DataFrame:
    if not path.is_file():
        raise LogError(f"{path}: no such file, a generated log takes its {content} from it.")
    frame = read_frame(path)
    check_columns(frame.columns, columns, path)
    return frame


def read_trace(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return a trace's arrivals [n] in [0, 1) of its length, and its response tokens [n].

    Raises:
        ValueError: the file or a column is missing.
    """
    frame = _read_source(path, "arrivals", "TIMESTAMP", "GeneratedTokens")
    frame = frame.sort("TIMESTAMP", maintain_order=True)
    times = frame["TIMESTAMP"].cast(pl.Datetime("us")).to_physical().to_numpy().astype(float)
    # One mean interval from the last arrival to the trace's repetition.
    length = (times[-1] - times[0]) * len(times) / (len(times) - 1)
    return (times - times[0]) / length, frame["GeneratedTokens"].to_numpy()


def read_gaps(path: Path) -> np.ndarray:
    """Return the real gaps between repeats, seconds, in increasing order.

    Raises:
        ValueError: the file or the column is missing.
    """
    gaps = _read_source(path, "retrial gaps", "seconds_since_previous")
    return np.sort(gaps["seconds_since_previous"].drop_nulls().to_numpy().astype(float))


def draw_gap(gaps: np.ndarray, uniform: float) -> float:
    """Return a gap in seconds: the empirical quantile, interpolated between logarithms."""
    quantiles = (np.arange(len(gaps)) + 0.5) / len(gaps)
    return float(np.exp(np.interp(uniform, quantiles, np.log(gaps))))


def satisfaction_by_topic(longer: float) -> np.ndarray:
    """Return the probability that an answer satisfies a user: [topics]."""
    topics = np.arange(len(TOPICS))
    easy = np.linspace(*EASY, len(TOPICS))
    spread = np.linspace(0.8, 1.2, len(TOPICS) // HARD)
    hard = np.minimum(0.95, spread[topics // HARD] / (longer - 1))
    return np.where(topics % HARD == 0, hard, easy)


class _Row(NamedTuple):
    """One conversation to write; `kind` is chain, early, follow_up or other."""

    ip: str
    prompt: str
    arrival: int
    tokens: int
    turns: int
    chain: int
    position: int
    satisfaction: float
    kind: str
    model: str = MODEL

    @property
    def answer_times(self) -> list[int]:
        """Microseconds since 1970 at which each turn is answered."""
        first = self.arrival + round(SECOND * (FIRST_TOKEN + self.tokens / TOKENS_PER_SECOND))
        return [first + i * 40 * SECOND for i in range(self.turns)]

    def to_conversation(self) -> dict[str, Any]:
        """Return a row of the official schema; a response has four letters per token."""
        answers = [(time, "word" * self.tokens) for time in self.answer_times]
        return make_conversation(self.model, self.ip, self.prompt, answers)


class _Generator:
    """Draws the conversations of a log."""

    def __init__(self, settings: GeneratorSettings, data_dir: Path) -> None:
        self.settings = settings
        self.arrivals, self.tokens = read_trace(data_dir / TRACE)
        self.gaps = read_gaps(data_dir / GAPS)
        self.draw = np.random.default_rng(settings.seed)
        combined = list(itertools.product(range(len(TOPICS)), KINDS, PLACES))
        # Any two differ in topic, kind or place, so that no encoder confuses them.
        self.pool = [combined[i] for i in self.draw.permutation(len(combined))]
        self.satisfaction = satisfaction_by_topic(settings.longer)
        self.chain = 0

    def draw_rows(self) -> list[_Row]:
        """Draw all rows, chain by chain."""
        rows: list[_Row] = []
        extra = 1 + self.settings.early + self.settings.follow_ups
        mean_length = float(np.mean(1 / self.satisfaction))
        roots = max(2, round(self.settings.conversations / mean_length / extra))
        # Arrivals: the trace, repeated and stretched to the log's days.
        number = np.arange(roots)
        passed = number // len(self.arrivals) + self.arrivals[number % len(self.arrivals)]
        since = np.rint(passed / passed[-1] * self.settings.days * 86400 * SECOND)
        # IPs: some have many users, most a few.
        size = max(1, round(roots / self.settings.users))
        weight = np.minimum(self.draw.pareto(1.2, size) + 0.2, 60)
        ips = self.draw.choice(size, roots, p=weight / weight.sum())
        used: dict[int, int] = {}
        for start, ip in zip(BEGIN + since.astype(int), ips, strict=True):
            place = used[ip] = used.get(ip, -1) + 1
            rows += self._draw_chain(start, ip, (7 * ip + place) % len(self.pool))
        return rows

    def _draw_chain(self, start: int, ip: int, place: int) -> list[_Row]:
        topic, kind, where = self.pool[place]
        chance = float(self.satisfaction[topic])
        verb, person = VERBS[place % len(VERBS)], place % len(PEOPLE)
        request = f"{kind} about {TOPICS[topic]} for {{}} in {where}".format
        prompt = f"{verb} {request(PEOPLE[person])}"
        length = int(self.draw.geometric(chance))
        rows = [self._draw_row(ip, prompt, start, 0, chance, "chain")]
        while len(rows) < length:
            gap = draw_gap(self.gaps, self.draw.uniform())
            later, text = rows[-1].answer_times[-1] + 1 + round(SECOND * gap), prompt
            if self.draw.uniform() < self.settings.retyped:
                retyped = (prompt + " ", prompt.replace(" ", "  ", 1), prompt + "\n")
                text = retyped[self.draw.integers(3)]
            rows.append(self._draw_row(ip, text, later, len(rows), chance, "chain"))
        self.chain += 1
        if length == 1:
            other = f"{verb} {request(PEOPLE[person - 1])}"
            if self.settings.close:
                edited = f"{VERBS[place % len(VERBS) - 1]} {request(PEOPLE[person])}"
                other = (other, prompt + "?", prompt + " please", edited)[self.draw.integers(4)]
            rows += self._draw_decoys(rows[0], ip, other, chance)
        if self.draw.uniform() < 0.1:
            rows.append(rows[0]._replace(model="gpt-3.5-turbo-0613", kind="other", chain=-1))
        return rows

    def _draw_decoys(self, root: _Row, ip: int, other: str, chance: float) -> list[_Row]:
        """Draw conversations that resemble a retrial of a single one and are none."""
        decoys, uniform, ended = [], self.draw.uniform(), root.answer_times[-1]
        if uniform < self.settings.early:
            soon = root.arrival + int((ended - root.arrival) * self.draw.uniform(0.1, 0.9))
            decoys = [self._draw_row(ip, root.prompt, soon, 0, chance, "early")]
        elif uniform < self.settings.early + self.settings.follow_ups:
            later = ended + round(SECOND * self.draw.uniform(5, 120))
            decoys = [self._draw_row(ip, other, later, 0, chance, "follow_up")]
        self.chain += len(decoys)
        return decoys

    def _draw_row(
        self, ip: int, prompt: str, arrival: int, position: int, chance: float, kind: str
    ) -> _Row:
        tokens = int(self.tokens[self.draw.integers(len(self.tokens))])
        turns = 1 + int(self.draw.uniform() < 0.3)
        return _Row(
            f"{ip:064x}", prompt, int(arrival), tokens, turns, self.chain, position, chance, kind
        )


def make_conversation(
    model: str, ip: str, prompt: str, answers: Sequence[tuple[int, str]], **changed: Any
) -> dict[str, Any]:
    """Return a conversation as a row of the official schema.

    Args:
        model: that answered.
        ip: hashed.
        prompt: the first one; later ones ask for more.
        answers: the time of each answer, microseconds since 1970, and its text.
        changed: columns that replace the usual ones.
    """
    turns: list[dict[str, Any]] = []
    common = {
        "country": "France", "state": None, "language": "English", "redacted": False,
        "toxic": False,
    }  # fmt: skip
    times = [EPOCH + datetime.timedelta(microseconds=int(time)) for time, _ in answers]
    for number, (time, (_, text)) in enumerate(zip(times, answers, strict=True)):
        turns.append(
            {**common, "role": "user", "content": "Go on." if number else prompt, "hashed_ip": ip,
             "header": HEADER, "timestamp": None, "turn_identifier": 2 * number}
        )  # fmt: skip
        turns.append(
            {**common, "role": "assistant", "content": text, "hashed_ip": None, "header": None,
             "country": None, "timestamp": time, "turn_identifier": 2 * number + 1}
        )  # fmt: skip
    content = "\n".join(turn["content"] for turn in turns).encode()
    return {
        **common, "conversation_hash": hashlib.md5(content, usedforsecurity=False).hexdigest(),
        "model": model, "timestamp": times[-1] if times else None, "conversation": turns,
        "turn": len(answers), "openai_moderation": [], "detoxify_moderation": [],
        "hashed_ip": ip, "header": HEADER, **changed,
    }  # fmt: skip


def write_shard(path: Path, rows: Sequence[dict[str, Any]], proxy_note: str = "") -> None:
    """Write one shard.

    Args:
        path: of the shard.
        rows: from `make_conversation`.
        proxy_note: the dataset that the shard stands in for, in words; empty for none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = SCHEMA.with_metadata({PROXY_NOTE: proxy_note.encode()}) if proxy_note else SCHEMA
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)


def main(words: Sequence[str] | None = None) -> None:
    """Generate the log that a command line describes, and print its folder."""
    parser = argparse.ArgumentParser("reproduction.generated_log", description=__doc__)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("conversations", type=int)
    parser.add_argument("--longer", type=float, default=4.8)
    parser.add_argument("--follow-ups", type=float, default=0.04)
    parser.add_argument("--close", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    asked = vars(parser.parse_args(words))
    data_dir = asked.pop("data_dir")
    folder = data_dir / "made_up" / f"wildchat-{asked['conversations']}"
    try:
        with remove_on_error(folder):
            generate(folder, data_dir, GeneratorSettings(**asked))
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")
    print(folder)


if __name__ == "__main__":
    main()
