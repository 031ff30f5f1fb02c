"""What spark-submit is given: the query of `spark.pipeline`, which finds its master and jars on the command line."""

from __future__ import annotations

import sys

from spark.pipeline import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
