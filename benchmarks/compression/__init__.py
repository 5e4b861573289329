"""Systems of the literature that compress an encoder, at equal processor time."""
