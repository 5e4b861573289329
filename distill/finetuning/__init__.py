"""Fine-tuning on the labels of one or several tasks, and the bag-of-words baseline."""
