"""How far the estimates are from the minimiser: python scripts/estimator_error.py [DATA_DIR]."""

from cqbjax.commands.estimator_error import main

if __name__ == "__main__":
    main()
