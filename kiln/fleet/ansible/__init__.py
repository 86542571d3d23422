"""The executor of commands on machines, by Ansible playbooks."""
