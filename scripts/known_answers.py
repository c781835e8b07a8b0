"""Set known queues beside simulated ones: python scripts/known_answers.py [--loads 0.6 0.8]."""

from cqbjax.commands.known_answers import main

if __name__ == "__main__":
    main()
