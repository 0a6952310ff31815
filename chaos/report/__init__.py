"""What a person reads of a run: report.html and junit.xml."""
