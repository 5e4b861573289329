"""Fine-tuning on labels, alone and on several tasks, and the bag of words."""
