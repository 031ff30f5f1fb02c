"""The live page of ``sparkonce ui``, for operators: it reads checkpoints and systems, and changes nothing.

- ``watcher``: reads the checkpoints and asks the systems in the background
- ``timeline``: a query's batches and events, numbered, so that a browser fetches each of them once
- ``state``: what is known of each query and system, as values
- ``alarms``: the rules by which something is an alarm, with its next step
- ``server``: serves the page, and its JSON
"""
