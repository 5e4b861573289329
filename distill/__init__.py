"""Teachers and students: pre-training, fine-tuning and distillation."""
