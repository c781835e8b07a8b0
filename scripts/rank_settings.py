"""Rank settings over several sensitivity studies: python scripts/rank_settings.py FILES."""

from cqbjax.commands.rank_settings import main

if __name__ == "__main__":
    main()
