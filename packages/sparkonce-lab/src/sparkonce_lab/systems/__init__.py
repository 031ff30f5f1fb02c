"""The systems that a query under verification writes to, and its checkpoint's store: started here, or the user's own.

- ``base``: the operations of a system; ``injections``: implements the faults
- ``kafka``, ``files``, ``s3``, ``delta``, ``postgres``, ``mysql`` and ``redis``: the systems
- ``store``: the checkpoint's store
- ``names``: creates a system from its name
- ``observed``: builds tables from the rows that readers found
"""
