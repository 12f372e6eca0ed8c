"""Package of the tests of enforced NetworkPolicies, so that pytest ends their cluster after the last one."""
