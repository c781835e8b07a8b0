"""Measure how fast the simulator is on this machine: python scripts/bench.py [--quick]."""

from cqbjax.commands.bench import main

if __name__ == "__main__":
    main()
