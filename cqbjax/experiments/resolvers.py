"""What the words of a configuration stand for, known before anything heavy is imported."""

import math

from omegaconf import OmegaConf

# Of the datasets in the catalogue.
TITLES = {
    "routerbench": "RouterBench", "mmlu_pro": "MMLU-Pro", "embedllm": "EmbedLLM",
    "sprout": "SPROUT", "paretobandit": "ParetoBandit",
}  # fmt: skip


def register() -> None:
    """Teach OmegaConf `${tau:rule,T,c1}`, `${times:a,b}` and `${dataset_title:name}`."""
    OmegaConf.register_new_resolver("tau", exploration_length, replace=True)
    OmegaConf.register_new_resolver("dataset_title", dataset_title, replace=True)
    OmegaConf.register_new_resolver("times", times, replace=True)


def dataset_title(name: str) -> str:
    """Return how a dataset is called in figures and tables; one of the user's own by its name."""
    return TITLES.get(name, name)


def times(*factors: float) -> float:
    """Return the product, to ten digits: `${times:0.7,16}` is 11.2."""
    return round(math.prod(factors), 10)


def exploration_length(rule: str | float | None, horizon: int, c1: float) -> float:
    """Return tau in rounds.

    Args:
        rule: `tenth` (T / 10, the paper's synthetic setting), `stabilised` (the first t with
            c1 / sqrt(t + 1) <= 1, its offline one), or a number of rounds.
        horizon: T.
        c1: exploration constant.

    Raises:
        ValueError: for another word, nothing or a negative number.
    """
    if rule == "tenth":
        return float(horizon // 10)
    if rule == "stabilised":
        if not isinstance(c1, int | float):
            raise ValueError(f"c1={c1} must be a number for explore_rounds=stabilised")
        return float(max(1, math.ceil(c1**2 - 1)))
    if not isinstance(rule, int | float) or not 0 <= rule < float("inf"):
        raise ValueError(
            f"explore_rounds={rule} must be `tenth`, `stabilised` or a number of rounds >= 0"
        )
    return float(rule)
