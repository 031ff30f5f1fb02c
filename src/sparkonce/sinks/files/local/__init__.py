"""A folder of a local or mounted POSIX file system as a store.

A file is staged under ``.sparkonce/held`` in the folder itself, so that both its names are on one file system, without
the extension that readers look for. ``link`` publishes it under its second name, which fails if that name is taken; the
second name is made durable, and the first is removed. So a sealed file has at every instant one of its names or both. A
file with neither was deleted by somebody.

- ``store``: the folder as a `FileStore`, and its small files
- ``preflight``: tries at a start what publishing does, and gives the folder an id
- ``writing``: one file while it is being staged
- ``finish``: publishes and discards staged files
- ``outcomes``: maps the file system's errors to outcomes
"""
