"""The rows of STAGES that this package has: one file a stage."""
