"""Where the model.py of a repository that an earlier version has written finds the backend."""
