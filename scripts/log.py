"""Read a log of requests: python scripts/log.py describe requests.jsonl."""

from cqbjax.cli.log import main

if __name__ == "__main__":
    main()
