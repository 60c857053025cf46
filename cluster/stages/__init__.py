"""The five stages: each can be planned, applied, checked, run again and undone."""
