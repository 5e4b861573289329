"""Ways to serve a model that endpoints are compared with, as an engineer would write them."""
