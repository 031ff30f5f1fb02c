"""A prefix of a bucket as a place for files: a multipart upload is held back, and completing it publishes it."""

from sparkonce.sinks.files.s3.store import S3Store

__all__ = ["S3Store"]
