"""`python -m pdbench` and the console script."""

import gc
import sys

# Nearly all that the imports make lives until the end, so collecting in between costs a tenth of a short command and
# finds nothing. `cli` turns collection on again when the verb begins.
gc.disable()

from pdbench.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
