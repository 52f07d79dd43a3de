"""All ranks as threads of one process."""
