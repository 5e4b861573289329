"""Distillation on a task and on a corpus: the student, its texts, its phases."""
