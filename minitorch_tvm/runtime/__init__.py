"""Memory, compiled programs and the threads that run them."""
