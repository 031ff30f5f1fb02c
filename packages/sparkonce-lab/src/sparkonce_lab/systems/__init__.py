"""The systems that a query under verification writes to, and its checkpoint's store: started here, or the user's own.

- ``base`` names their operations, ``injections`` implements the faults.
- ``kafka``, ``files``, ``s3``, ``delta``, ``postgres``, ``mysql`` and ``redis`` are the systems.
- ``store`` is the store of the checkpoint.
- ``names`` makes a system from its name.
- ``observed`` makes tables of the rows that readers found.
"""
