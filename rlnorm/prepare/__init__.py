"""Models and data made or fetched on the spot, so that a first run needs no hub and no account."""
