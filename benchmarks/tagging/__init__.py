"""Distilling on tags of words."""
