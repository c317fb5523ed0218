"""`python -m hf_rlhf.cli`."""

import sys

from hf_rlhf.cli import main

sys.exit(main())
