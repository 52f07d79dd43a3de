"""What belongs to processes and threads: who there is, what the caller has switched on, clocks."""
