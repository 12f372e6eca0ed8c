"""Commands that write and check jobs without running them."""
