"""Study how ACQB depends on its constants: `run kind=sensitivity`.

python scripts/sensitivity.py experiment=synthetic
python scripts/sensitivity.py experiment=routerbench data_dir=PATH num_seeds=8 horizon=2000
python scripts/sensitivity.py experiment=synthetic kind.M=[1,9] dry_run=true

Runs are stored in `data/sensitivity_NAME` under `results_dir`; table and figure go to
`tables/sensitivity_NAME` and `figures/sensitivity_NAME`.
"""

import functools

from cqbjax.commands import run

main = functools.partial(run.main, "kind=sensitivity")
