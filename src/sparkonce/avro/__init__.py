"""Avro columns, and the Schema Registry that stores their schemas.

The public functions are in ``columns``: they decode and encode columns, with a schema from a registry (``registry``) or
from a schema file. ``schemas`` handles schemas as values and names their subjects, and ``transcode`` converts records
from one schema to another. ``decode`` builds the plan for a column, ``later`` looks up schemas that are registered
while the query is running, ``module`` finds Spark's own Avro module, and ``limits`` checks its limits.
Importing this package loads neither Spark nor a client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkonce.lazy import lazy as _lazy

if TYPE_CHECKING:
    from sparkonce.avro.columns import decode_registry_avro as decode_registry_avro
    from sparkonce.avro.columns import from_avro_file as from_avro_file
    from sparkonce.avro.columns import from_registry_avro as from_registry_avro
    from sparkonce.avro.columns import to_avro_file as to_avro_file
    from sparkonce.avro.columns import to_registry_avro as to_registry_avro
    from sparkonce.avro.registry import SchemaRegistry as SchemaRegistry
    from sparkonce.avro.schemas import SubjectStrategy as SubjectStrategy

HOMES = {
    "SchemaRegistry": "sparkonce.avro.registry",
    "SubjectStrategy": "sparkonce.avro.schemas",
    "decode_registry_avro": "sparkonce.avro.columns",
    "from_avro_file": "sparkonce.avro.columns",
    "from_registry_avro": "sparkonce.avro.columns",
    "to_avro_file": "sparkonce.avro.columns",
    "to_registry_avro": "sparkonce.avro.columns",
}
"""The public names, and the module that defines each."""

__all__ = sorted(HOMES)
__getattr__, __dir__ = _lazy(__name__, HOMES)
