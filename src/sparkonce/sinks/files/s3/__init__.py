"""A prefix of a bucket, of S3 or of a store that speaks its language, as a store.

A file is staged as a multipart upload, which no reader sees. Any process can complete it, and the store completes it
once: that publishes the file.

- ``store``: the prefix as a `FileStore`: stages, publishes and discards files
- ``preflight``: tries at a start every request that the sink makes, and reads the bucket's rules
- ``requests``: sends requests, lists open uploads, and maps answers to outcomes
- ``settings``: the user's settings, checked, and the boto3 clients made of them
"""
