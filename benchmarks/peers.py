"""The same work by other packages, compared with this simulator: rounds a second.

A peer works in its own way, on one core unless it runs batches. The random numbers of a loop in
Python are drawn before the clock starts; here, and in the plain scan, drawing counts. The first
time of each side, which also compiles, is not counted.
"""

import dataclasses
import importlib.metadata
import importlib.util
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl
from jax.sharding import Mesh, PartitionSpec

from benchmarks import numpy_loop
from benchmarks.cases import ACQB, BASELINES, CROWDED_SLOTS
from benchmarks.measure import Case, measure, time_calls
from cqbjax import env
from cqbjax.core import rng
from cqbjax.policies import LinearBandit
from cqbjax.sources import Synthetic
from tests.reference import known_queues
from tests.reference.environments import play

EXTRA = "peers"
# The Geo/Geo/1 queue, and its load.
GEO, LOAD = known_queues.KNOWN[0], 0.8
ALPHA = 0.25  # of LinTS, as in conf/config.yaml
QUICK: dict[str, Any] = {"horizon": 100, "batch": 16, "chunks": 2}

# Plays all runs to the end and returns their results.
Play = Callable[[], Any]


class Contexts:
    """Arriving contexts as an environment of coba: the reward of an answer is the user's choice.

    Attributes:
        params: coba's description of an environment.
        contexts: [T][d] one a round.
        rewards: [T][N] 1 where the answer would be chosen, of K = 1.
        actions: [N][N] a unit vector each, so that coba's crossed features are a block an LLM.
    """

    def __init__(self, case: Case) -> None:
        """Draw them as the simulator does."""
        run = numpy_loop.record(case.source, 1, case.arrival_rate, case.horizon)
        arrivals = run.instance.arrival_index
        odds = np.exp(run.instance.utilities[arrivals])
        self.params = {"env_type": case.name}
        self.contexts = run.instance.features[arrivals].tolist()
        self.rewards = (run.draws.choice[:, None] < odds / (1 + odds)).astype(float).tolist()
        self.actions = [tuple(one) for one in np.eye(odds.shape[1]).tolist()]

    def read(self) -> Iterator[Any]:
        """Yield the interactions, one a round."""
        from coba.primitives import SimulatedInteraction

        for context, rewards in zip(self.contexts, self.rewards, strict=True):
            yield SimulatedInteraction(context, self.actions, rewards)


def prepare_lints(case: Case, runs: int) -> Play:
    """Prepare coba's LinTS: a ridge regression an LLM, as in `policies.LinearBandit`."""
    from coba import LinTSLearner, SequentialCB

    contexts, evaluator = Contexts(case), SequentialCB(record=["action", "reward"])
    # Its draw of theta has covariance v A^-1; here the deviation is alpha times.
    fields = {"v": ALPHA**2, "features": ["ax"]}
    return lambda: list(evaluator.evaluate(contexts, LinTSLearner(**fields)))


def ciw_records(seed: int, rate: float, success: float, rounds: int, **network: Any) -> list[Any]:
    """Simulate geometric arrivals and services by Ciw and return its records, one a departure.

    Args:
        seed: of the simulation.
        rate: queries a round.
        success: m, the probability that an attempt ends the service.
        rounds: time units; whole ones, since both distributions are geometric.
        network: further arguments of `ciw.create_network`; one server by default.
    """
    import ciw

    arrivals, services = ([ciw.dists.Geometric(chance)] for chance in (rate, success))
    laws = {"arrival_distributions": arrivals, "service_distributions": services}
    made = ciw.create_network(**({"number_of_servers": [1]} | laws | network))
    ciw.seed(seed)
    simulation = ciw.Simulation(made)
    simulation.simulate_until_max_time(rounds)
    return list(simulation.get_all_records())


def prepare_scan(case: Case, runs: int) -> Play:
    """Prepare a scan of `Env.step` under random actions: queue lengths [runs, T]."""
    (label,) = case.policies
    environment = env.Env(
        case.source, case.arrival_rate, case.horizon, case.assortment_size,
        case.group(label).initial_slots(),
    )  # fmt: skip
    policy, devices = BASELINES["random"], np.asarray(jax.devices()[:runs])
    alone = jax.vmap(lambda key: play(environment, policy, key).length)
    along, mesh = PartitionSpec("runs"), Mesh(devices, ("runs",))
    over = jax.shard_map(alone, mesh=mesh, in_specs=along, out_specs=along, check_vma=False)
    compiled, keys = jax.jit(over), jax.vmap(rng.run_key)(jnp.arange(runs))
    return lambda: np.asarray(compiled(keys))


def prepare_loop(case: Case, runs: int) -> Play:
    """Prepare ACQB in a NumPy loop."""
    run = numpy_loop.record(case.source, case.assortment_size, case.arrival_rate, case.horizon)
    return lambda: numpy_loop.play(*run)


class Pair(NamedTuple):
    """The same work, by a peer and here.

    Attributes:
        package: of the peer; the table shows its version.
        peer: its part that does the work.
        prepare: (case, runs) -> a function that plays them.
        batches: whether the peer can play many runs at once.
        ours: the policy here.
        case: the work here, in a batch, with the name of the work.
    """

    package: str
    peer: str
    prepare: Callable[[Case, int], Play]
    batches: bool
    ours: str
    case: Case


def _case(name: str, label: str, policy: Any, **fields: Any) -> Case:
    usual: dict[str, Any] = {"source": Synthetic(), "batch": 256, "chunks": 6}
    return Case(name, {label: policy}, **(usual | fields))


PAIRS = (
    Pair("coba", "LinTSLearner, no queue", prepare_lints, False, "lints, and the queue",
         _case("LinTS, d=5 N=5", "lints", LinearBandit(index="thompson", alpha=ALPHA))),
    Pair("ciw", "event by event",
         lambda case, _: lambda: ciw_records(0, case.arrival_rate, known_queues.M, case.horizon),
         False, "rand_rout, source=coin",
         _case("Geo/Geo/1, load 0.8", "rand_rout", GEO.policy, source=GEO.source,
               arrival_rate=GEO.rate(LOAD))),
    Pair("jax", "lax.scan of Env.step", prepare_scan, True, "sweep of random",
         _case("random actions, d=5 N=5", "random", BASELINES["random"], capacity=CROWDED_SLOTS)),
    Pair("numpy", "a loop on one core", prepare_loop, False, "acqb",
         _case("ACQB, d=5 N=5", "acqb", ACQB)),
)  # fmt: skip


def rows(quick: bool, log: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Measure each installed peer, and the same work here.

    Args:
        quick: few rounds.
        log: receives a line before each pair, and for each peer that is not installed.

    Yields:
        A row a pair: the `work`; the `peer`, its rounds a second in one run on one core, and in a
        batch if it has such; `ours`, its rounds a second in one run on one device, and in a batch
        on all of them; `horizon`; `runs` of a batch; `compile_seconds` of ours in it.
    """
    for pair in PAIRS:
        if not importlib.util.find_spec(pair.package):
            log(f'{pair.package} is not measured: install it by pip install -e ".[{EXTRA}]"')
            continue
        log(f"{pair.case.name}: {pair.package} and cqbjax")
        case = dataclasses.replace(pair.case, **QUICK) if quick else pair.case
        # The peer alone, ours alone, then batches.
        theirs = _rounds_a_second(pair, case, 1)
        (alone,) = measure(dataclasses.replace(case, batch=1, num_devices=1))
        together = _rounds_a_second(pair, case, case.at_once) if pair.batches else None
        (batch,) = measure(case)
        version = importlib.metadata.version(pair.package)
        yield {
            "work": case.name, "peer": f"{pair.package} {version}, {pair.peer}",
            "peer_rounds_a_second": theirs, "peer_batch_rounds_a_second": together,
            "ours": pair.ours, "run_rounds_a_second": alone["rounds_a_second"],
            "batch_rounds_a_second": batch["rounds_a_second"], "horizon": case.horizon,
            "runs": case.at_once, "compile_seconds": batch["compile_seconds"],
        }  # fmt: skip


def _rounds_a_second(pair: Pair, case: Case, runs: int) -> float:
    """Time a peer as often as ours has chunks: the median, without the first."""
    play = pair.prepare(case, runs)
    with threadpoolctl.threadpool_limits(1):
        seconds = time_calls(play, case.chunks)
    return runs * case.horizon / statistics.median(seconds[1:])
