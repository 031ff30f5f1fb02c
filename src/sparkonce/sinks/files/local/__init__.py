"""Files on a local disk: ``store`` publishes them, ``writing`` stages one, ``preflight`` checks the folder."""
