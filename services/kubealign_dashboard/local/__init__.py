"""The dashboard of this machine's runs."""
