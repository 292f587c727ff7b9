"""`python -m cosyvoice_app.engines.cuda_probe N`: torch's view of the GPUs as one line of JSON, from a process that may
start CUDA and be killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from cosyvoice_app.orphans import end_with_parent


def main() -> None:
    end_with_parent(os.getppid())
    import torch

    from cosyvoice_app.engines.device_facts import look

    print(json.dumps(dataclasses.asdict(look(torch, int(sys.argv[1])))))


if __name__ == "__main__":
    main()
