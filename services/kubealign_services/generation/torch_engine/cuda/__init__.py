"""What makes a pass quick on a GPU: FlashAttention over the pages, and decoding passes recorded as graphs."""
