"""`python -m pdbench` and the console script."""

import sys

from pdbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
