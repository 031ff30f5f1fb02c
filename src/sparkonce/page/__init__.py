"""The live page of ``sparkonce ui``, for operators: it reads checkpoints and systems, and changes nothing.

- ``kept``: a query's batches and events, numbered, so that a browser fetches each once
- ``usual``: how long batches usually take, and how many rows they write
- ``state``: what is known of each query and system, as values
- ``alarms``: the rules by which something is an alarm, with its next step
- ``looks``, ``checkpoints``, ``systems``: read each of them in the background, again and again
- ``watcher``: looks at all of them
- ``server``: serves the page, and its JSON
"""
