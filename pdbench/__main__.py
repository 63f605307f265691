"""`python -m pdbench` and the console script."""

import gc
import sys

# Nearly all that the imports make lives until the end, so collecting in between costs a tenth of a short command and
# finds nothing. `cli` turns collection on again when the verb begins.
gc.disable()

from pdbench.errors import Interrupted, end_at_once  # noqa: E402

# Ctrl-C while modules are imported: nothing is there to be saved, and some modules would take the exception for a fault
# of theirs. `cli` makes it an exception again when the verb begins. Whoever ignores the signal goes on doing so.
try:
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_at_once)
except KeyboardInterrupt:
    end_at_once()

from pdbench import cli  # noqa: E402


def main() -> int:
    """Run the command line. What there is then goes with the process: collecting it first would take 0.2 s."""
    try:
        code = cli.main()
    except KeyboardInterrupt:  # while the last words were said
        print("pdbench: interrupted.", file=sys.stderr)
        code = Interrupted.exit_code
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(main())
