"""Load tests of an endpoint: requests at a rate or at once, and the highest rate that holds."""
