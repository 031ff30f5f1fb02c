"""The program for spark-submit: the query of `spark.pipeline`, with master and jars from the command line."""

from __future__ import annotations

import sys

from spark.pipeline import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
