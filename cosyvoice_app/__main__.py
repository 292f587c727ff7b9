"""`python -m cosyvoice_app COMMAND`."""

import sys

from cosyvoice_app.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
