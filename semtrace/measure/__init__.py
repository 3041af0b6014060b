"""What an execution shows: the audit of its faithfulness, its measures, and comparisons of two executions."""
