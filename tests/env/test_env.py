"""The environment: the same numbers as a sweep, and gymnasium's own checker."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cqbjax
from cqbjax import dynamics, policies, sources
from cqbjax.core import queueing, rng
from cqbjax.core.scenario import with_dynamics
from cqbjax.core.types import Action, Observation
from cqbjax.env import Env
from tests.reference.environments import play

HORIZON, SEEDS = 60, (3, 8)
SOURCE = sources.Synthetic(num_servers=4, dim=3)
RULES = {"users": (dynamics.Impatience(attempts=2),), "service": (dynamics.Outages(length=9),)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "rules", "size"),
    [
        (policies.Acqb(alpha_scale=0.2), {}, 1),
        (policies.Acqb(retry="fallback"), RULES, 1),
        (policies.RandomRouting(retry="fallback"), {}, 2),
        (policies.RandomRouting(schedule="random"), RULES, 2),
        (policies.OptimalPolicy(), RULES, 1),
    ],
    ids=["acqb", "acqb fallback, rules", "fallback", "random, rules", "oracle"],
)
def test_environment_reproduces_a_sweep_bit_for_bit(policy, rules, size):
    swept = cqbjax.sweep(
        {"mine": policy}, SOURCE, arrival_rate=[0.6], seeds=list(SEEDS), horizon=HORIZON,
        K=size, record_every=1, **{k: list(v) for k, v in rules.items()},
    )  # fmt: skip
    source = with_dynamics(SOURCE, rules.get("users", ()), rules.get("service", ()))
    env = Env(source, 0.6, HORIZON, size, capacity=64)
    keys = jax.vmap(rng.run_key)(np.asarray(SEEDS))
    step_info = jax.jit(jax.vmap(lambda key: play(env, policy, key)))(keys)
    mine = swept.sel(policy="mine", arrival_rate=0.6)
    np.testing.assert_array_equal(step_info.length, mine.queue_length.transpose("seed", "round"))
    np.testing.assert_array_equal(step_info.departed, mine.departures.transpose("seed", "round"))
    assert step_info.departed[:, -1].min() > 5 and not step_info.overflow.any()


@pytest.mark.slow
def test_reward_of_a_step_is_the_negative_queue_length():
    env = Env(sources.Coin(success=0.6, num_servers=4), 1.0, 3, capacity=8)
    key = rng.run_key(1)
    seen, state = env.reset(key)
    assert not bool((seen.queue.arrived > 0).any()) and int(seen.round) == 1
    lengths = []
    for t in range(3):
        action = Action(
            queueing.pick("oldest", seen.queue, jnp.zeros(())), jnp.arange(1), jnp.bool_(False)
        )
        seen, state, reward, done, step_info = env.step(key, state, action)
        lengths.append(int(step_info.length))
        assert float(reward) == -lengths[-1] and bool(done) == (t == 2)
        assert bool(step_info.feedback.valid) == (t > 0), "nobody waits in the first round"
        assert int(step_info.departed) == t + 1 - lengths[-1]
    for name, (shape, dtype, low, high) in env.spaces.items():
        there = {"features": seen.features, "round": seen.round}.get(name)
        there = getattr(seen.queue, name, None) if there is None else there
        if there is not None:
            assert there.shape == shape and there.dtype == dtype
            assert (there >= low).all() and (there <= high).all()


def test_rounds_of_the_environment_match_a_hand_computation():
    """A query comes in every round and none is ever satisfied; two slots hold the first two."""
    env = Env(sources.Coin(success=1e-9), 1.0, horizon=4, capacity=2)

    @jax.jit
    def run(key):
        def one(state, t):
            action = Action(jnp.int32(0), jnp.arange(1), jnp.bool_(False))
            seen, state, reward, done, step_info = env.step(key, state, action)
            feedback = step_info.feedback.valid, step_info.feedback.choice
            counts = step_info.length, step_info.departed, step_info.overflow
            return state, (seen.round, seen.queue[1:3], reward, done, *counts, *feedback)

        return jax.lax.scan(one, env.reset(key)[1], jnp.arange(4))[1]

    made = jax.tree.map(np.ndarray.tolist, jax.device_get(run(rng.run_key(1))))
    rounds, (arrived, served), reward, done, length, departed, overflow, valid, choice = made
    assert rounds == [2, 3, 4, 5] and done == [False, False, False, True]
    assert arrived == [[1, 0], [1, 2], [1, 2], [1, 2]]
    assert served == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert length == [1, 2, 2, 2] and reward == [-1, -2, -2, -2] and departed == [0] * 4
    assert overflow == [False, False, True, True]
    assert valid == [False, True, True, True] and choice[1:] == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "error_text"),
    [({"arrival_rate": 1.5}, "arrival_rate=1.5"), ({"capacity": 0}, "capacity=0"),
     ({"K": 5}, "K=5 must lie in 1..N, and N=4")],
)  # fmt: skip
def test_invalid_environment_options_are_rejected(options, error_text):
    with pytest.raises(ValueError, match=error_text):
        Env(SOURCE, **options)


OUT_OF_RANGE = (2**31, 2**32 + 7, 2**63 + 7, -1, 3.0, True, "3", np.float32(3), np.int64(-7))


@pytest.mark.parametrize("seed", OUT_OF_RANGE, ids=repr)
def test_seeds_outside_the_range_of_sweep_are_rejected(seed):
    with pytest.raises(ValueError, match="must be a whole number from 0 to 2\\^31 - 1"):
        rng.run_key(seed)


@pytest.mark.slow
def test_gymnasium_seeds_match_seeds_of_a_sweep():
    pytest.importorskip("gymnasium", reason='needs `pip install "cqbjax[gymnasium]"`')
    from cqbjax.gymnasium_env import GymnasiumEnv, GymnasiumVectorEnv

    functional, started = Env(SOURCE, 0.6, horizon=5, capacity=4), []

    def run_uncompiled(env):
        def reset(seeds):
            started.append(seeds)
            env._runs._state = "state"
            return {}, {"action_mask": ()}

        env._runs.reset = reset
        return env

    def make_env():
        return run_uncompiled(GymnasiumEnv(functional))

    env, other = make_env(), make_env()
    with pytest.raises(ValueError, match=r"reset\(\) must be called before"):
        env.step(env.action_space.sample())
    first = env.reset(seed=np.int64(7))[1]["seed"]
    assert first == 7 and type(first) is int
    # What is drawn without a seed goes on from the last one; a failed reset changes nothing.
    other.reset(seed=7)
    for seed in OUT_OF_RANGE:
        with pytest.raises(ValueError, match="seed=.* must be a whole number from 0"):
            env.reset(seed=seed)
    drawn = [env.reset()[1]["seed"] for _ in range(3)]
    assert drawn == [other.reset()[1]["seed"] for _ in range(3)] and len({*drawn}) == 3
    # Without any seed it is entropy.
    fresh = [make_env().reset(seed=None)[1]["seed"] for _ in range(2)]
    assert fresh[0] != fresh[1] and all(0 <= one < rng.MAX_SEED for one in fresh)
    last = env.reset(seed=rng.MAX_SEED - 1)[1]["seed"]
    assert last == rng.MAX_SEED - 1 == started[-1]
    for action in ([4, 0], [0, 4], [-1, 0], [0.5, 0], [0]):
        with pytest.raises(ValueError, match="must be a slot below 4 and an assortment below 4"):
            env.step(np.asarray(action))

    several = run_uncompiled(GymnasiumVectorEnv(3, functional))
    assert several.reset(seed=7)[1]["seed"].tolist() == [7, 8, 9] == started[-1].tolist()
    assert several.reset(seed=[5, 0, 5])[1]["seed"].tolist() == [5, 0, 5]
    for seed in (*OUT_OF_RANGE, rng.MAX_SEED - 2, [1, 2], [0, 1, -1]):
        with pytest.raises(ValueError, match="seed=.* must be"):
            several.reset(seed=seed)
    drawn = several.reset()[1]["seed"]
    assert len({*drawn.tolist()}) == 3 and all(0 <= one < rng.MAX_SEED for one in drawn)


def test_vector_environment_uses_consecutive_seeds():
    pytest.importorskip("gymnasium", reason='needs `pip install "cqbjax[gymnasium]"`')
    from cqbjax.gymnasium_env import GymnasiumVectorEnv

    several, started = GymnasiumVectorEnv(3, Env(SOURCE, 0.6, horizon=5, capacity=4)), []
    several._runs.reset = lambda seeds: started.append(seeds) or ({}, {"action_mask": ()})
    assert several.reset(seed=7)[1]["seed"].tolist() == [7, 8, 9] == started[-1].tolist()
    assert several.reset(seed=[5, 0, 5])[1]["seed"].tolist() == [5, 0, 5] == started[-1].tolist()


def test_environment_rejects_several_service_channels():
    source = with_dynamics(
        sources.ArrivalWrapper(source=SOURCE, process=sources.BatchArrivals()),
        (),
        (dynamics.ServiceChannels(count=2),),
    )
    with pytest.raises(ValueError, match="serves one query a round, not 2"):
        Env(source, 1.0)


@pytest.mark.slow
def test_gymnasiums_checker_passes():
    pytest.importorskip("gymnasium", reason='needs `pip install "cqbjax[gymnasium]"`')
    import gymnasium
    from gymnasium.utils.env_checker import check_env

    from cqbjax.gymnasium_env import GymnasiumEnv

    env = gymnasium.make(
        "cqbjax/Routing-v0", source=SOURCE, arrival_rate=0.6, horizon=30, capacity=16
    ).unwrapped
    assert isinstance(env, GymnasiumEnv)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        check_env(env)
    # Features of a source are unbounded.
    assert all("infinity. This is probably too" in str(one.message) for one in warned)
    seen, info = env.reset(seed=3)
    assert info["seed"] == 3 and seen["arrived"].sum() == 0
    swept = cqbjax.sweep(
        {"mine": policies.RandomRouting()}, SOURCE, arrival_rate=[0.6], seeds=[3], horizon=30,
        record_every=1,
    )  # fmt: skip
    arrived = swept.queue_length + swept.departures
    ends = []
    for t in range(30):
        _, reward, terminated, truncated, info = env.step(env.action_space.sample())
        ends.append(info["length"] + info["departed"])
        assert reward == -info["length"] and not terminated and truncated == (t == 29)
    # Whoever is asked, the same queries come as in a sweep.
    np.testing.assert_array_equal(ends, arrived.sel(policy="mine").values.squeeze())


@pytest.mark.slow
def test_the_action_mask_marks_valid_actions():
    env = Env(SOURCE, K=2, capacity=3)

    def mask(arrived, available):
        queue = queueing.empty_queue(3)._replace(arrived=jnp.asarray(arrived))
        seen = Observation(env.problem, *[None] * 7)._replace(queue=queue, available=available)
        return [one.tolist() for one in env.action_mask(seen)]

    assert mask([0, 5, 2], None) == [[False, True, True], [True] * 6]
    assert mask([0, 0, 0], jnp.zeros(4, bool)) == [[True, False, False], [True] * 6]
    # Assortments 01, 02, 03, 12, 13, 23.
    only_first = jnp.asarray([True, False, False, False])
    assert mask([1, 0, 0], only_first)[1] == [True] * 3 + [False] * 3


@pytest.mark.slow
def test_vector_environment_equals_single_environments():
    """The vector environment: the numbers of single environments, then the next runs."""
    pytest.importorskip("gymnasium", reason='needs `pip install "cqbjax[gymnasium]"`')
    import gymnasium

    from cqbjax.gymnasium_env import GymnasiumEnv, GymnasiumVectorEnv

    source = with_dynamics(SOURCE, (), (dynamics.Outages(length=3),))
    arguments = {"source": source, "arrival_rate": 0.7, "horizon": 8, "K": 2, "capacity": 6}
    several = gymnasium.make_vec("cqbjax/Routing-v0", num_envs=2, **arguments)
    assert isinstance(several, GymnasiumVectorEnv)
    singles = [GymnasiumEnv(several.env), GymnasiumEnv(several.env)]
    seen, info = several.reset(seed=[4, 1])
    for single, seed in zip(singles, (4, 1), strict=True):
        single.reset(seed=seed)
    several.action_space.seed(0)
    for t in range(8):
        assert seen in several.observation_space
        actions = several.action_space.sample(mask=info["action_mask"])
        slots, assortments = info["action_mask"]
        assert slots[[0, 1], actions[:, 0]].all() and assortments[[0, 1], actions[:, 1]].all()
        seen, rewards, terminated, truncated, info = several.step(actions)
        assert not terminated.any() and (truncated == (t == 7)).all()
        assert not info["served_oldest"].any(), "the actions were valid"
        for i, single in enumerate(singles):
            own, reward, _, _, step_info = single.step(actions[i])
            assert reward == rewards[i]
            for name in own:
                np.testing.assert_array_equal(own[name], seen[name][i])
            for name in ("length", "departed", "overflow", "served_oldest"):
                assert step_info[name] == info[name][i]
            for mask, of_all in zip(step_info["action_mask"], info["action_mask"], strict=True):
                np.testing.assert_array_equal(mask, of_all[i])
    assert rewards.min() < 0, "queries wait"
    seen, rewards, _, truncated, info = several.step(actions)
    assert not rewards.any() and not truncated.any() and (seen["round"] == 1).all()
    assert len({*info["seed"].tolist()}) == 2
    with pytest.raises(ValueError, match="must be a slot below 6 and an assortment below 6"):
        several.step(actions + 6)
    with pytest.raises(ValueError, match="give an Env, or its arguments, not both"):
        GymnasiumEnv(several.env, horizon=3)
    with pytest.raises(ValueError, match="num_envs=0 must be"):
        GymnasiumVectorEnv(0)
