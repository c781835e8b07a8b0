"""Draw the figures and tables of stored studies again.

python scripts/report.py                  # all experiments under results/
python scripts/report.py FOLDER [NAME]    # another results_dir, one experiment
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from cqbjax.commands._refusing import refusing


def main() -> None:
    """Show the stored studies that the command line names."""
    words = sys.argv[1:]
    with refusing():
        report(Path(words[0] if words else "results"), words[1:])


def report(root: Path, names: Sequence[str]) -> None:
    """Show each experiment below `root/data`, with the configuration that is stored beside it.

    Raises:
        ValueError: nothing is stored there, or nothing of these names.
    """
    from omegaconf import DictConfig, OmegaConf

    from cqbjax.report import results
    from cqbjax.studies import replaying, showing

    folders = sorted(path for path in (root / "data").glob("*") if path.is_dir())
    chosen = [folder for folder in folders if not names or folder.name in names]
    if not chosen:
        have = ", ".join(folder.name for folder in folders) or "none"
        raise ValueError(
            f"no stored experiment {' '.join(names)} under {root / 'data'}; there: {have}"
        )
    console = showing.console()
    for folder in chosen:
        config = OmegaConf.create(results.read_config(next(folder.rglob(f"*{results.ENDING}"))))
        assert isinstance(config, DictConfig)
        points = results.load_points(folder, showing.rounds_shown(config))
        if showing.few(points):
            points = results.load_points(folder)
        config.results_dir = str(root)
        show = replaying.show if replaying.is_replay(config) else showing.show
        for path in show(points, config, folder.name, console):
            console.print(str(path))
