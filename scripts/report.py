"""Draw the figures and tables of stored studies again.

python scripts/report.py                  # all experiments under results/
python scripts/report.py FOLDER [NAME]    # another results_dir, one experiment
"""

import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from cqbjax.report import results
from cqbjax.studies import study


def main(root: Path, names: list[str]) -> None:
    """Show each experiment below `root/data`, with the configuration that is stored in it."""
    folders = sorted(path for path in (root / "data").glob("*") if path.is_dir())
    chosen = [folder for folder in folders if not names or folder.name in names]
    if not chosen:
        have = ", ".join(folder.name for folder in folders) or "none"
        sys.exit(
            f"error: no stored experiment {' '.join(names)} under {root / 'data'}; there: {have}"
        )
    console = study.console()
    for folder in chosen:
        points = results.load_points(folder)
        config = OmegaConf.create(results.read_config(points[0].attrs["path"]))
        assert isinstance(config, DictConfig)
        config.results_dir = str(root)
        for path in study.show(points, config, folder.name, console):
            console.print(str(path))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"), sys.argv[2:])
    except ValueError as error:
        sys.exit(f"error: {error}")
