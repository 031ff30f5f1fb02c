"""Manifests of whole batches, for readers of the files sink's folder or bucket, and compaction of its files."""

from __future__ import annotations

from sparkonce.sinks.files.compaction import Compacted, compact
from sparkonce.sinks.files.manifests import CommittedFile, Manifest
from sparkonce.sinks.files.reading import read_manifests, whole_batches

__all__ = ["CommittedFile", "Compacted", "Manifest", "compact", "read_manifests", "whole_batches"]
