"""Several students of one teacher."""
