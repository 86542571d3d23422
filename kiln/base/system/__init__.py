"""What the system is asked for, and what differs between Linux and macOS: files, processes, the user, the machine."""
