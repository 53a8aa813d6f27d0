"""What agentruns is measured against."""
