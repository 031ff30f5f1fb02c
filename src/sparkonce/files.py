"""The manifests of whole batches, for readers of the files sink's folder or bucket."""

from __future__ import annotations

from sparkonce.sinks.files.manifests import CommittedFile, Manifest
from sparkonce.sinks.files.reading import read_manifests, whole_batches

__all__ = ["CommittedFile", "Manifest", "read_manifests", "whole_batches"]
