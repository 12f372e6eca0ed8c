"""Backend of this machine, over run directories and their runners."""
