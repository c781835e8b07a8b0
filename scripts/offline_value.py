"""Measure routers and the head without a queue: python scripts/offline_value.py experiment=NAME."""

from cqbjax.commands.offline_value import main

if __name__ == "__main__":
    main()
