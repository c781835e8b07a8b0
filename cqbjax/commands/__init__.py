"""The commands: `cqbjax NAME` where the package is installed, `scripts/NAME.py` in a checkout."""
