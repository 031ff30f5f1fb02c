"""Real servers, each a plain process on a free loopback port, with its data in a folder of the caller's."""
