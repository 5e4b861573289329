"""Bundles: a graph in the layout that another program opens; a file for each program."""
