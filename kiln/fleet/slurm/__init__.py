"""Configs as jobs of an existing Slurm cluster: submitted, followed, collected and cancelled; no worker is made."""
