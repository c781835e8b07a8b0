"""Draw the figures and tables of stored studies again: python scripts/report.py [FOLDER [NAME]]."""

from cqbjax.commands.report import main

if __name__ == "__main__":
    main()
