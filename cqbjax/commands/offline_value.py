"""Measure the head and the routers of an experiment without a queue: `run kind=offline_value`.

python scripts/offline_value.py experiment=routerbench num_seeds=30
python scripts/offline_value.py experiment=mmlu_pro num_seeds=30 data_dir=PATH

Writes `tables/offline_NAME_head`: nearest-neighbour utility error before and after the head;
`tables/offline_NAME_routers`: what each router would serve, and its hyper-parameters, chosen on
every seed's own split and once for all seeds; `tables/offline_NAME_seeds.csv`: that seed by seed.
"""

import functools

from cqbjax.commands import run

main = functools.partial(run.main, "kind=offline_value")
