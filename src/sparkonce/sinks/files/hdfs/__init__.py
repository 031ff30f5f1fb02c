"""Files in HDFS: ``store`` publishes them, ``writing`` stages one, ``deadlines`` bounds each call of the client."""
