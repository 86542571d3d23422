"""The fleet: cells built on many machines at once, brought home, and every machine given back.

`plan` says what it would do and cost; the supervisor does it, by Ansible's playbooks.
"""
