"""Package of the job tests, so that pytest ends the fixture `platform` after the folder's last test."""
