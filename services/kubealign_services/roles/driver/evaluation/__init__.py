"""Jobs without training that measure the validation on one model after the other."""
