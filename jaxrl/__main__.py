"""`python -m jaxrl`."""

import sys

from jaxrl.cli import main

if __name__ == "__main__":  # a spawned environment process imports this file again
    sys.exit(main())
