"""Many texts through an endpoint: read from a file, sent several requests at a time, written."""
