"""Processes and decisions: node agent, fork server, coordinator, trainer."""
