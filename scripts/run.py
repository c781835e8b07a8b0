"""Run one study: python scripts/run.py experiment=synthetic [key=value ...]."""

from cqbjax.commands.run import main

if __name__ == "__main__":
    main()
