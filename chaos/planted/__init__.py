"""Planted bugs, and the checks that must catch them: each bug is code outside the product that breaks one thing in it."""
