"""The executor of commands on a Slurm cluster."""
