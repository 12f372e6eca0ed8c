"""A package, so that the browser is closed with the last test of this folder: Playwright's event loop would
stand in the way of every asynchronous test that comes after it."""
