"""Build a dataset's table and embeddings once: python scripts/prepare_data.py dataset=NAME."""

from cqbjax.cli.prepare_data import main

if __name__ == "__main__":
    main()
