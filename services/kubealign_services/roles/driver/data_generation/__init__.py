"""Jobs without training that write rows: generate, annotate, revise and select."""
