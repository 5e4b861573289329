"""An endpoint next to other servers and to its model in process."""
