"""Program that runs in the trackers' environment; it imports nothing of kubealign."""
