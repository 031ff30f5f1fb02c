"""A folder in HDFS as a store, through the client ``hdfs-native``, which needs no Java.

A file is staged under ``.sparkonce/held`` and published by a rename that fails if its target exists: one step of the
name node's own log. So a sealed file always has exactly one of its two names.

- ``store``: the folder as a `FileStore`, and its small files
- ``preflight``: tries at a start what publishing does, and gives the folder an id
- ``writing``: one file while it is being staged
- ``finish``: publishes and discards staged files
- ``outcomes``: maps the client's errors to outcomes

The client repeats requests for minutes on its own. Each request is waited for up to a deadline. A request without an
answer may still be applied later, which does no harm: it does what was decided, or nothing.
"""
