"""`python -m pdbench` and the console script."""

import gc
import sys

# Nearly all that the imports make lives until the end, so collecting in between costs a tenth of a short command and
# finds nothing. `cli` turns collection on again when the verb begins.
gc.disable()

from pdbench import cli  # noqa: E402


def main() -> int:
    """Run the command line. What there is then goes with the process: collecting it first would take 0.2 s."""
    code = cli.main()
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(main())
