"""A prefix of a bucket, of S3 or of a store that speaks its language, as a store.

A file is staged as a multipart upload, which no reader sees. Any process can complete it, and the store completes it
once: that publishes the file.

- ``store``: the prefix as a `FileStore`, and its small files
- ``preflight``: tries at a start every request that the sink makes, and reads the bucket's rules
- ``writing``: one file while it is being staged, sent part by part
- ``finish``: publishes and discards staged files
- ``outcomes``: maps S3's answers to outcomes
- ``listing``: lists open uploads, page by page
- ``requests``: sends requests, and returns refusals as values
- ``settings``: the user's settings, checked, and the boto3 clients made of them
"""
