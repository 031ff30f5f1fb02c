"""A prefix of a bucket as a store, in S3 or a compatible store.

A file is staged as a multipart upload, which no reader sees. Any process can complete the upload, which publishes the
file. The store completes an upload only once.

- ``store``: the prefix as a `FileStore`: stages, publishes and discards files
- ``preflight``: tries every request that the sink makes, at the start, and reads the bucket's rules
- ``requests``: sends requests, lists open uploads, and maps answers to outcomes
- ``settings``: validates the user's settings and creates boto3 clients from them
"""
