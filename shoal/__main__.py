"""`python -m shoal` runs `shoal`."""

from shoal.cli.main import main

if __name__ == "__main__":
    main()
