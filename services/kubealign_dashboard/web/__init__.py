"""HTTP concerns of all routes: authentication, authorization, errors, encoding, metrics."""
