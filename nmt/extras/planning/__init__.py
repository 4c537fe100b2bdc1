"""What to know and to have before a training: a start, the plan, a dry run, the doctor."""
