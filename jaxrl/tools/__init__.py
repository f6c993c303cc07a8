"""What looks at runs and trains nothing: report, dashboard, watch, doctor, bench."""
