"""Delta Lake and Iceberg tables: rows wait as files, and one write on the driver makes a batch a version of the table.

``sink`` and ``committer`` are what both have in common, on the machinery of `sparkonce.sinks.write_ahead`; ``delta``
and ``iceberg`` write, and ask the table what it holds. They need their Spark packages, and the driver's session.
"""
