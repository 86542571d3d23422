"""The records that the processes of one build exchange: jobs, messages, logs, failures."""
