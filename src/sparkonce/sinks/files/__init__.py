"""The files sink: a folder or a bucket in which readers see exactly the committed rows."""
