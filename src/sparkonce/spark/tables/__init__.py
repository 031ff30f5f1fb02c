"""Tables: rows wait as files, and one write on the driver makes a batch a version of the table.

``sink`` and ``committer`` are what all tables have in common, on the machinery of `sparkonce.sinks.write_ahead`;
``delta`` and ``iceberg`` write, and ask their table what it holds. They need its Spark package,
and the driver's session.
"""
