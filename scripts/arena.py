"""Let a policy enter the arena: python scripts/arena.py policy=my_policy.py:Mine."""

from cqbjax.cli.arena import main

if __name__ == "__main__":
    main()
