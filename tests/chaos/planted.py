"""`python -m tests.chaos.planted MUTANT …` is `shoal …` with a bug in it, for as long as it runs."""

from __future__ import annotations

import sys

from shoal.cli.main import main
from tests.mutants.catalogue import ALL


def run() -> None:
    name = sys.argv.pop(1)
    with ALL[name].planted():
        main()


if __name__ == "__main__":
    run()
