"""Property tests draw the same examples in every run; PDBENCH_FUZZ=1 draws new ones."""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("fuzz", deadline=None)
settings.load_profile("fuzz" if os.environ.get("PDBENCH_FUZZ") else "fixed")
