"""What everything else uses: errors, text, files, processes, the system, masking, limits, HTTP."""
