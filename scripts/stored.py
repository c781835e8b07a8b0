"""List what is stored of an experiment: python scripts/stored.py results/data/NAME."""

from cqbjax.cli.stored import main

if __name__ == "__main__":
    main()
