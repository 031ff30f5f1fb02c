"""The live page of ``sparkonce ui``, for operators. It reads checkpoints and systems, and never changes anything.

- ``watcher``: polls the checkpoints and the systems in the background, and numbers a query's batches and events, so
  that a browser fetches each of them once
- ``state``: the known facts about each query and system, as values
- ``alarms``: the rules that raise alarms, each with its next step
- ``server``: serves the page and its JSON
"""
