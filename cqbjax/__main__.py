"""`python -m cqbjax` is the console command."""

from cqbjax.cli.__main__ import main

if __name__ == "__main__":
    main()
