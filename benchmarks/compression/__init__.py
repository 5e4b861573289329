"""Systems of the literature that compress an encoder, at equal wall time."""
