"""The executor of commands on machines, by Ansible playbooks, and what these do by Python in their own process."""
