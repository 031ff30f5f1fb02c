"""Real servers, each a plain process on a free loopback port. The caller provides the folder for its data."""
