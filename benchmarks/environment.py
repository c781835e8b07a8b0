"""Measure the steps a second of gymnasium's interface: `python -m benchmarks.environment`.

Actions are drawn before the clock starts: slot 0 and a uniform assortment. Each number is of the
fastest and of the median of 50 stretches, since other processes only make a stretch slower.
"""

import statistics
from collections.abc import Callable

import numpy as np

from benchmarks.measure import time_calls
from cqbjax import sources
from cqbjax.core import backend
from cqbjax.env import Env
from cqbjax.gymnasium_env import GymnasiumEnv, GymnasiumVectorEnv

STRETCHES, HORIZON, CAPACITY = 50, 1000, 64
SINGLE_STEPS, VECTOR_STEPS, WIDTHS = 15, 5, (64, 256, 1024)


def measure(step: Callable[[int], object], steps: int) -> tuple[float, float]:
    """Return steps a second in the fastest stretch, and in the median one."""
    numbers = iter(range(STRETCHES * steps))
    seconds = time_calls(lambda: [step(next(numbers)) for _ in range(steps)], STRETCHES)
    return steps / min(seconds), steps / statistics.median(seconds)


def main() -> None:
    """Print a line for the single environment, and for each width of the vector environment."""
    backend.configure()
    env, draw = Env(sources.Synthetic(), 0.7, HORIZON, capacity=CAPACITY), np.random.default_rng(0)

    def draw_actions(*shape: int) -> np.ndarray:
        # Slot 0 holds a query as soon as one waits.
        ranks = draw.integers(env.num_assortments, size=shape)
        return np.stack([np.zeros_like(ranks), ranks], axis=-1)

    single, actions = GymnasiumEnv(env), draw_actions(HORIZON)
    single.reset(seed=0)
    single.step(actions[0])
    fastest, median = measure(lambda t: single.step(actions[t]), SINGLE_STEPS)
    print(f"single: {fastest:,.0f} steps a second at best, {median:,.0f} in the median")
    for width in WIDTHS:
        several, actions = GymnasiumVectorEnv(width, env), draw_actions(HORIZON, width)
        several.reset(seed=0)
        several.step(actions[0])
        rates = measure(lambda t: several.step(actions[t]), VECTOR_STEPS)  # noqa: B023
        fastest, median = (width * one for one in rates)
        print(f"{width} runs: {fastest:,.0f} at best, {median:,.0f} in the median")


if __name__ == "__main__":
    main()
