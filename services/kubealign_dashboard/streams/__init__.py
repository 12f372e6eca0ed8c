"""Live updates: changes are polled or watched once, however many readers follow them."""
