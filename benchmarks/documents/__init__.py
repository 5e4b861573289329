"""The marked parts of the documents, and what each is made from."""
