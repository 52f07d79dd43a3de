"""How messages get from rank to rank: threads of one process, or processes of one or many hosts."""
