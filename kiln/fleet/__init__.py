"""The fleet: configs are built on many workers at once, their packages collected, and all workers terminated.

`plan` computes schedule and cost; the supervisor decides; Ansible's playbooks execute.
"""
