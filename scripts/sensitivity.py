"""Study how ACQB depends on its constants: python scripts/sensitivity.py experiment=synthetic."""

from cqbjax.commands.sensitivity import main

if __name__ == "__main__":
    main()
