"""Pure judgement of recorded history; never of live state."""
