"""A package, so that the browser is closed after the last test of this folder: a running Playwright event
loop breaks all later asynchronous tests."""
