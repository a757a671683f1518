"""`python -m bert_mlperf` is `bert-mlperf`."""

import sys

from bert_mlperf.cli import main

sys.exit(main())
