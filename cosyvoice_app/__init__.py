"""Zero-shot voice cloning: a clip and a text in, that voice saying it out."""

import os

__version__ = "0.1.0"

# Before torch is loaded: its threads on the CPU otherwise spin for milliseconds while they wait for each other, and
# beside any other program that has something to do on the same cores a request takes many times as long. Some
# microseconds of spinning cover the gaps between the operations of one request.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
