"""Small files in exactly the official schemas, at real N, with made-up content.

    python -m tests.dataset_files sprout 2000 PATH
    python scripts/prepare_data.py dataset=sprout source=PATH

Prompts have topics, and every LLM is better at some of them, so that there is something to learn.
Origins start with "synthetic", by which the loaders mark every table made of them.
"""

import pathlib
import sys
from collections.abc import Callable

import numpy as np
import polars as pl

ROUTERBENCH_LLMS = (
    "WizardLM/WizardLM-13B-V1.2", "claude-instant-v1", "claude-v1", "claude-v2",
    "gpt-3.5-turbo-1106", "gpt-4-1106-preview", "meta/code-llama-instruct-34b-chat",
    "meta/llama-2-70b-chat", "mistralai/mistral-7b-chat", "mistralai/mixtral-8x7b-chat",
    "zero-one-ai/Yi-34B-Chat",
)  # fmt: skip
SPROUT_LLMS = (
    "aws-claude-3-5-sonnet-v1", "aws-titan-text-premier-v1", "openai-gpt-4o", "openai-gpt-4o-mini",
    "openai-o3-mini", "wxai-granite-3-2b-instruct-8k-max-tokens",
    "wxai-granite-3-8b-instruct-8k-max-tokens", "wxai-llama-3-1-70b-instruct",
    "wxai-llama-3-1-8b-instruct", "wxai-llama-3-2-1b-instruct", "wxai-llama-3-2-3b-instruct",
    "wxai-llama-3-3-70b-instruct", "wxai-llama-3-405b-instruct", "wxai-mixtral-8x7b-instruct-v01",
)  # fmt: skip
_SIZES = ("1.3b", "3b", "7b", "8x7B", "13b", "34B", "40b", "70B")
EMBEDLLM_LLMS = (
    "microsoft/phi-2",
    *(f"made-up/model-{k:03d}-{_SIZES[k % len(_SIZES)]}-chat" for k in range(111)),
)
TOPICS = tuple(
    words.split()
    for words in (
        "sum even number prime fraction triangle integral product root matrix",
        "python function loop string list compile integer variable recursion array",
        "king war treaty empire century revolution parliament battle colony senate",
        "cell protein enzyme virus blood heart tissue gene nerve hormone",
        "contract court statute plaintiff appeal tort liability judge verdict clause",
        "poem novel verse author rhyme drama metaphor stanza narrator sonnet",
    )
)


def topics(count: int, seed: int = 0) -> np.ndarray:
    """Return the topic [P] of every made-up prompt."""
    return np.random.default_rng([seed, 1]).integers(0, len(TOPICS), count)


def prompts(count: int, seed: int = 0) -> list[str]:
    """Return distinct prompts with the line breaks, commas and quotes that CSVs trip over."""
    rng = np.random.default_rng(seed)
    return [
        f'Question {k}, "quoted":\n{" ".join(rng.choice(TOPICS[topic], 8))}?\n\nA) yes, B) no'
        for k, topic in enumerate(topics(count, seed))
    ]


def chances(count: int, servers: int, seed: int = 0) -> np.ndarray:
    """Return the probability [P, N] that a server answers a prompt correctly: by its topic."""
    skill = np.random.default_rng([seed, 2]).uniform(0.1, 0.9, (len(TOPICS), servers))
    return skill[topics(count, seed)]


def routerbench_frame(count: int = 12, seed: int = 0) -> pl.DataFrame:
    """Return RouterBench's columns: sample_id, prompt, eval_name, scores, responses, costs."""
    rng = np.random.default_rng(seed)
    columns: dict[str, list[object]] = {
        "sample_id": [f"synthetic.dev.{k}" for k in range(count)],
        "prompt": [repr([text]) for text in prompts(count, seed)],
        "eval_name": ["synthetic"] * count,
    }
    right = rng.random((count, len(ROUTERBENCH_LLMS))) < chances(count, len(ROUTERBENCH_LLMS), seed)
    for j, llm in enumerate(ROUTERBENCH_LLMS):
        columns[llm] = right[:, j].astype(float).tolist()
    for llm in ROUTERBENCH_LLMS:
        columns[f"{llm}|model_response"] = [
            f"['{answer}']" for answer in rng.choice(["A", "B"], count)
        ]
    for llm in ROUTERBENCH_LLMS:
        columns[f"{llm}|total_cost"] = rng.uniform(1e-5, 1e-2, count).tolist()
    columns["oracle_model_to_route_to"] = [ROUTERBENCH_LLMS[0]] * count
    return pl.DataFrame(columns)


def write_embedllm(
    folder: pathlib.Path, count: int = 20, seed: int = 0
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Write train.csv, val.csv and test.csv; return labels [P, 112] and the prompts [P]."""
    rng = np.random.default_rng(seed)
    shape = (count, len(EMBEDLLM_LLMS))
    labels = (rng.random(shape) < chances(*shape, seed)).astype(int)
    texts = prompts(count, seed)
    cuts = (0, count // 2, 3 * count // 4, count)
    for part, first, last in zip(("train", "val", "test"), cuts[:-1], cuts[1:], strict=True):
        rows = [(i, j) for i in range(first, last) for j in range(len(EMBEDLLM_LLMS))]
        columns = {
            "prompt_id": [str(i) for i, _ in rows],
            "model_id": [str(j) for _, j in rows],
            "model_name": [EMBEDLLM_LLMS[j] for _, j in rows],
            "category": ["synthetic-mmlu"] * len(rows),
            "prompt": [texts[i] for i, _ in rows],
            "label": [int(labels[i, j]) for i, j in rows],
        }
        pl.DataFrame(columns).write_csv(folder / f"{part}.csv")
    return labels.astype(float), tuple(texts)


def write_sprout(folder: pathlib.Path, count: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    """Write the three splits under data/; return scores and tokens, each [P, 14], P = count."""
    rng = np.random.default_rng(seed)
    shape = (count, len(SPROUT_LLMS))
    truth = {
        "score": rng.binomial(4, chances(*shape, seed)) / 4.0,
        "num_input_tokens": rng.integers(10, 400, shape),
        "num_output_tokens": rng.integers(1, 900, shape),
    }
    texts, tokens = prompts(count, seed), ("num_input_tokens", "num_output_tokens")
    cuts = (0, count // 2, 3 * count // 4, count)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for part, first, last in zip(("train", "validation", "test"), cuts[:-1], cuts[1:], strict=True):
        rows = range(first, last)
        frame = pl.DataFrame(
            {
                "key": [str(i - first) for i in rows],
                "dataset": ["synthetic-gsm8k"] * len(rows),
                "dataset level": ["none"] * len(rows),
                "dataset idx": list(rows),
                "prompt": [texts[i] for i in rows],
                "golden_answer": ["A"] * len(rows),
            }
        ).with_columns(
            pl.Series(
                llm,
                [
                    {key: truth[key][i, j].item() for key in tokens}
                    | {"response": "a long response", "score": float(truth["score"][i, j])}
                    for i in rows
                ],
            )
            for j, llm in enumerate(SPROUT_LLMS)
        )
        frame.write_parquet(folder / "data" / f"{part}-00000-of-00001.parquet")
    return truth


def write(name: str, folder: pathlib.Path, count: int) -> None:
    """Write a dataset's files into a folder.

    Args:
        name: `routerbench`, `embedllm` or `sprout`.
        folder: created if it does not exist.
        count: prompts, at least 12.
    """
    makers: dict[str, Callable[[pathlib.Path, int], object]] = {
        "routerbench": lambda where, many: routerbench_frame(many).write_csv(
            where / "synthetic_train.csv"
        ),
        "embedllm": write_embedllm,
        "sprout": write_sprout,
    }
    folder.mkdir(parents=True, exist_ok=True)
    makers[name](folder, count)


if __name__ == "__main__":
    write(sys.argv[1], pathlib.Path(sys.argv[3]), int(sys.argv[2]))
