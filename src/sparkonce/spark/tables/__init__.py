"""Tables: rows wait as files, and one write on the driver makes a batch a version of the table.

``sink`` and ``committer`` are what all tables have in common, on the machinery of `sparkonce.sinks.write_ahead`;
``delta`` writes, and asks the table what it holds. It needs its Spark package, and the driver's session.
"""
