"""The Resilient Memory Pool: a light process owns allocations; trainers attach by name."""
