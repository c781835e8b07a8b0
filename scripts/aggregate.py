"""Turn a sweep's result into a tidy table: python scripts/aggregate.py results/data/NAME."""

from cqbjax.cli.aggregate import main

if __name__ == "__main__":
    main()
